use super::*;

fn value(host: &str, port: u16, role: i64) -> String {
    format!(r#"{{"worker_id":"w","host":"{host}","port":{port},"role":{role}}}"#)
}

fn addresses(announced: &Announced, role: Role) -> Vec<String> {
    let workers = announced.workers(role);
    workers.into_iter().map(Worker::address).collect()
}

#[test]
fn an_announcement_is_read_with_whatever_newer_workers_add() {
    let text = r#"{"worker_id":"CTX-h:1-5-7-123","host":"h","port":1,"role":0,"new":{"a":[]}}"#;
    let worker = Worker::parse(text).unwrap();
    assert_eq!(
        (worker.role, worker.address()),
        (Role::Context, "h:1".to_owned())
    );
    assert_eq!(worker.worker_id, "CTX-h:1-5-7-123");
    assert_eq!(
        Worker::parse(&value("h", 1, 1)).unwrap().role,
        Role::Generation
    );
}

#[test]
fn what_is_no_worker_that_serves_here_is_told_why() {
    assert_eq!(Worker::parse(&value("h", 1, 4)), Err(Unfit::Role(4)));
    assert_eq!(Worker::parse(&value("h", 1, -1)), Err(Unfit::Role(-1)));
    assert_eq!(Worker::parse(&value("h", 0, 0)), Err(Unfit::Port));
    for host in ["", "h/x", "h:1", "a b", "u@h", "[::1]"] {
        assert_eq!(
            Worker::parse(&value(host, 1, 0)),
            Err(Unfit::Host),
            "{host}"
        );
    }
    for text in [
        "",
        "null",
        "[]",
        "{}",
        r#"{"worker_id":"w","host":"h","port":70000,"role":0}"#,
    ] {
        assert!(
            matches!(Worker::parse(text), Err(Unfit::Malformed(_))),
            "{text}"
        );
    }
}

#[test]
fn a_worker_stays_as_long_as_one_of_its_announcements_stands() {
    let mut announced = Announced::default();
    announced.set("old", &value("h", 1, 0)).unwrap();
    announced.set("new", &value("h", 1, 0)).unwrap();
    assert_eq!(addresses(&announced, Role::Context), ["h:1"]);
    announced.remove("old");
    assert_eq!(addresses(&announced, Role::Context), ["h:1"]);
    announced.remove("old");
    announced.remove("new");
    assert!(addresses(&announced, Role::Context).is_empty());
}

#[test]
fn an_announcement_that_turns_unfit_is_withdrawn() {
    let mut announced = Announced::default();
    announced.set("k", &value("h", 1, 0)).unwrap();
    announced.set("k", &value("h", 1, 1)).unwrap();
    assert!(addresses(&announced, Role::Context).is_empty());
    assert_eq!(addresses(&announced, Role::Generation), ["h:1"]);
    announced.set("k", "nonsense").unwrap_err();
    assert!(addresses(&announced, Role::Generation).is_empty());
}

#[test]
fn there_is_a_bound() {
    let mut announced = Announced::default();
    for number in 0..MOST_WORKERS {
        announced
            .set(&number.to_string(), &value("h", 1, 0))
            .unwrap();
    }
    assert_eq!(
        announced.set("more", &value("h", 1, 0)),
        Err(Unfit::TooMany)
    );
    announced.set("7", &value("h", 2, 0)).unwrap();
}
