//! Which instances worked on a request, where the operator wants it told: in every answer after the
//! first of them, by name and never by address.

use super::*;

const ON: &str = "telemetry: {debug_headers: true}";

fn told(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    let own = headers.iter();
    let own = own.filter(|(name, _)| name.starts_with("x-kindred-"));
    own.map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

const BOTH: [(&str, &str); 2] = [
    ("x-kindred-context", "context-0"),
    ("x-kindred-generation", "generation-0"),
];

#[test]
fn answers_and_errors_after_the_context_leg_name_the_instances() {
    for style in ["context_first", "generation_first"] {
        let (fleet, kindred) = start(&format!("schedule_style: {style}\n{ON}"));
        for stream in [false, true] {
            let answer = raw::post(kindred.edge(), CHAT, &[], &body(stream));
            assert_eq!(told(&answer.headers), BOTH, "{style} {stream}");
        }
        let generation = fleet.of(Role::Generation).next().unwrap();
        for (fault, status) in [("status=400", 400), ("status=500", 500), ("reset", 502)] {
            for stream in [false, true] {
                generation.fault(5, fault);
                let answer = raw::post(kindred.edge(), CHAT, &[], &body(stream));
                generation.fault(0, fault);
                assert_eq!(answer.status, status, "{fault}: {}", answer.text());
                let names = told(&answer.headers);
                let what = format!("{style} {fault} {stream}: {names:?}");
                assert!(names.contains(&BOTH[1]), "{what}");
                // With both in flight the context leg may be given up before it is done.
                assert!(style != "context_first" || names == BOTH, "{what}");
                for worker in &fleet.workers {
                    let address = worker.address.to_string();
                    let all = format!("{:?}{}", answer.headers, answer.text());
                    assert!(!all.contains(&address), "{all}");
                }
            }
        }
    }
}

#[test]
fn refusals_before_any_leg_and_an_operator_who_wants_none_name_nobody() {
    let (_fleet, kindred) = start(ON);
    let refused = raw::post(kindred.edge(), CHAT, &[], "{");
    assert_eq!((refused.status, told(&refused.headers)), (400, vec![]));
    let (fleet, kindred) = start("");
    let answer = raw::post(kindred.edge(), CHAT, &[], &body(false));
    assert_eq!((answer.status, told(&answer.headers)), (200, vec![]));
    fleet.of(Role::Generation).next().unwrap().fault(5, "reset");
    let answer = raw::post(kindred.edge(), CHAT, &[], &body(false));
    assert_eq!((answer.status, told(&answer.headers)), (502, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_answers_name_them_too() {
    let (fleet, kindred) = start(ON);
    let two = reqwest::Client::builder()
        .http2_prior_knowledge()
        .timeout(support::PATIENCE)
        .build()
        .unwrap();
    for (fault, status) in [(None, 200), (Some("status=400"), 400), (Some("reset"), 502)] {
        for stream in [false, true] {
            let generation = fleet.of(Role::Generation).next().unwrap();
            generation.fault(u32::from(fault.is_some()) * 5, fault.unwrap_or("reset"));
            let answer = two.post(kindred.url(CHAT)).body(body(stream));
            let answer = answer.send().await.unwrap();
            assert_eq!(answer.status(), status, "{fault:?}");
            for (name, value) in BOTH {
                assert_eq!(answer.headers()[name], value, "{fault:?} {stream}");
            }
            answer.bytes().await.unwrap();
            generation.fault(0, "reset");
        }
    }
}
