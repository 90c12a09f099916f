//! Several requests on one connection, sent without waiting: each gets its answer, in order.

use super::*;

const LAST: &str = "GET /version HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";

fn statuses(told: &str) -> Vec<&str> {
    answers(told)
        .iter()
        .filter_map(|answer| answer.split(' ').next())
        .collect()
}

#[test]
fn two_and_three_requests_at_once_are_answered_in_order() {
    let (fleet, kindred) = start("");
    let (stream, whole) = (kept(CHAT, &body(true)), kept(CHAT, &body(false)));
    let version = "GET /version HTTP/1.1\r\nhost: test\r\n\r\n".to_owned();
    for first in [&stream, &whole, &version] {
        let told = exchange(kindred.edge(), format!("{first}{LAST}").as_bytes());
        assert_eq!(statuses(&told), ["200", "200"], "{told}");
        assert!(answers(&told)[1].contains("\"version\""), "{told}");
        for second in [&stream, &whole, &version] {
            let bytes = format!("{first}{second}{LAST}");
            let told = exchange(kindred.edge(), bytes.as_bytes());
            assert_eq!(statuses(&told), ["200", "200", "200"], "{told}");
            for (answer, request) in answers(&told).iter().zip([first, second]) {
                let is_stream = answer.contains("data: [DONE]");
                assert_eq!(is_stream, request == &stream, "{told}");
                let is_version = answer.contains("\"version\"");
                assert_eq!(is_version, request == &version, "{told}");
            }
        }
    }
    assert_eq!(
        fleet.requests(Role::Context).len(),
        fleet.requests(Role::Generation).len()
    );
    kindred.assert_idle();
}

#[test]
fn a_request_that_fails_here_does_not_harm_the_next() {
    let (_fleet, kindred) = start("");
    for (status, first) in [
        (
            "404",
            "GET /nowhere HTTP/1.1\r\nhost: test\r\n\r\n".to_owned(),
        ),
        ("400", kept(CHAT, "{")),
        ("400", kept(CHAT, "{\"model\":\"m\"}")),
        ("405", format!("GET {CHAT} HTTP/1.1\r\nhost: test\r\n\r\n")),
    ] {
        let bytes = format!("{first}{}{LAST}", kept(CHAT, &body(true)));
        let told = exchange(kindred.edge(), bytes.as_bytes());
        assert_eq!(statuses(&told), [status, "200", "200"], "{first}: {told}");
        assert!(answers(&told)[1].contains("data: [DONE]"), "{told}");
    }
    kindred.assert_idle();
}

/// The connection may end after a failed leg, but then the failure says so, and nothing is answered
/// out of turn.
#[test]
fn after_a_failed_leg_the_next_is_answered_or_the_connection_ends() {
    let (fleet, kindred) = start("");
    for role in [Role::Context, Role::Generation] {
        for fault in ["status=400", "reset"] {
            for stream in [false, true] {
                let worker = fleet.of(role).next().unwrap();
                worker.fault(5, fault);
                let bytes = format!("{}{LAST}", kept(CHAT, &body(stream)));
                let told = exchange(kindred.edge(), bytes.as_bytes());
                worker.fault(0, fault);
                let what = format!("{role:?} {fault} {stream}: {told}");
                match statuses(&told)[..] {
                    ["400" | "502"] => {
                        assert!(
                            told.to_lowercase().contains("connection: close\r\n"),
                            "{what}"
                        );
                    }
                    ["400" | "502", "200"] => {
                        assert!(answers(&told)[1].contains("\"version\""), "{what}");
                    }
                    _ => panic!("{what}"),
                }
            }
        }
    }
    kindred.assert_idle();
}
