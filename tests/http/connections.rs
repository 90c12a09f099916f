//! How long a client's connection is kept.

use super::*;
use crate::support::reload;

const GET: &str = "GET /version HTTP/1.1\r\nhost: test\r\n\r\n";

#[test]
fn idle_connections_are_closed_after_the_files_time() {
    let (_fleet, kindred) = start("server_keep_alive_timeout: 1");
    // Neither connection says anything more, so both end only because the edge ends them.
    let told = exchange(
        kindred.edge(),
        format!("{GET}{}", kept(CHAT, &body(true))).as_bytes(),
    );
    assert_eq!(answers(&told).len(), 2, "{told}");
    assert!(!told.to_lowercase().contains("connection: close"), "{told}");
    let http2 = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &[0, 0, 0, 4, 0, 0, 0, 0, 0],
    ];
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(&http2.concat()).unwrap();
    assert!(
        stream.read_to_end(&mut Vec::new()).is_ok(),
        "HTTP/2 as well"
    );
}

#[test]
fn zero_closes_after_each_answer_and_says_so() {
    let (_fleet, kindred) = start("server_keep_alive_timeout: 0");
    for request in [GET.to_owned(), kept(CHAT, &body(true)), kept(CHAT, "{")] {
        let told = exchange(kindred.edge(), format!("{request}{GET}").as_bytes());
        assert_eq!(answers(&told).len(), 1, "{told}");
        let lower = told.to_lowercase();
        assert!(lower.contains("connection: close\r\n"), "{told}");
    }
}

#[test]
fn the_time_changes_with_the_file() {
    let fleet = fleet::start(1, 1, |_| ());
    let kindred = Kindred::serve(&fleet.yaml("server_keep_alive_timeout: 3600"));
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(GET.as_bytes()).unwrap();
    assert_eq!(raw::read_answer(&mut stream).status, 200);
    let yaml = fleet.yaml("server_keep_alive_timeout: 1");
    reload::reload(&kindred, &yaml, "applied");
    // The same connection, kept for an hour until now.
    stream.write_all(GET.as_bytes()).unwrap();
    let mut told = Vec::new();
    stream.read_to_end(&mut told).unwrap();
    assert!(told.starts_with(b"HTTP/1.1 200"));
}
