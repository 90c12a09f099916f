use super::*;

fn lines(run: impl FnOnce(&mut Vec<u8>) -> Result<(), ReplayError>) -> Result<Vec<Value>, String> {
    let mut out = Vec::new();
    run(&mut out).map_err(|error| error.to_string())?;
    let out = String::from_utf8(out).unwrap();
    Ok(out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect())
}

#[test]
fn each_scenario_is_one_line_shaped_like_expected() {
    let router = include_str!("../../../tests/vectors/conversation_router.json");
    let adp = include_str!("../../../tests/vectors/adp.json");
    for (document, lines) in [
        (router, lines(|out| replay_router(router, out)).unwrap()),
        (adp, lines(|out| replay_adp(adp, out)).unwrap()),
    ] {
        let scenarios = scenarios(document).unwrap();
        assert_eq!(lines.len(), scenarios.len());
        for (line, scenario) in lines.iter().zip(&scenarios) {
            assert_eq!(line["name"], scenario["name"]);
            if scenario.get("hash_seed_dependent").is_none() {
                assert_eq!(
                    line["outcome"], scenario["expected"],
                    "{}",
                    scenario["name"]
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let router = |scenario: &str| lines(|out| replay_router(&format!("[{scenario}]"), out));
    let adp = |scenario: &str| lines(|out| replay_adp(&format!("[{scenario}]"), out));
    assert_eq!(
        router(r#"{"name": "n", "servers": ["a", 3], "ops": []}"#).unwrap_err(),
        "scenario `n`: servers[1]: must be a text"
    );
    assert_eq!(
        router(r#"{"servers": [], "args": {"max_sessions": -1}, "ops": []}"#).unwrap_err(),
        "scenario without a name: args.max_sessions: must be a whole number from 0 that is not too large"
    );
    assert_eq!(
        router(r#"{"name": "n", "servers": [], "ops": [{"op": "route"}]}"#).unwrap_err(),
        "scenario `n`: ops[0].id: must be a text"
    );
    assert_eq!(
        adp(r#"{"name": "n", "config": {"ranks": 2}, "batches": [{"active": [0]}]}"#).unwrap_err(),
        "scenario `n`: batches[0].active: must have one number for each rank"
    );
    assert_eq!(
        adp(r#"{"name": "n", "config": {"ranks": 0}, "batches": []}"#).unwrap_err(),
        "scenario `n`: config.ranks: must be at least 1"
    );
    assert!(
        lines(|out| replay_adp("{", out))
            .unwrap_err()
            .starts_with("the scenarios are not JSON")
    );
    assert!(
        lines(|out| replay_adp("3", out))
            .unwrap_err()
            .contains("must be a list")
    );
}
