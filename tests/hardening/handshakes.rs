//! Connections of TLS that never finish their handshake.

use std::io::Write;

use super::*;

/// An edge with a certificate, which lives as long as its folder.
fn with_tls(more: &str) -> (tempfile::TempDir, Fleet, Kindred) {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("cert"), made.cert.pem()).unwrap();
    std::fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
    let (fleet, kindred) = start(&format!(
        "tls: {{cert_file: '{}', key_file: '{}'}}\n{more}",
        path("cert"),
        path("key")
    ));
    (folder, fleet, kindred)
}

#[test]
fn a_connection_counts_before_its_handshake_is_done() {
    let (_folder, _fleet, kindred) = with_tls("limits: {max_connections: 2}\n");
    let held = [(); 2].map(|()| raw::connect(kindred.edge()));
    kindred.assert_metric("kindred_connections", &[], 2.0);
    // There is nobody yet who could read an answer.
    assert_eq!(raw::read_all(&mut raw::connect(kindred.edge())), b"");
    let bound = ["bound=\"all\""];
    kindred.assert_metric("kindred_connections_refused_total", &bound, 1.0);
    drop(held);
    kindred.assert_metric("kindred_connections", &[], 0.0);
    // What is no handshake fails at once, and leaves no place behind.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x00\x04xxxx"] {
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(bytes).unwrap();
        raw::read_all(&mut stream);
        drop(stream);
        kindred.assert_metric("kindred_connections", &[], 0.0);
    }
}

#[test]
fn the_first_message_of_a_handshake_has_the_time_of_a_head() {
    let (_folder, _fleet, kindred) = with_tls("timeouts: {read_header: 300ms}\n");
    for bytes in [&b""[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01\x00"] {
        let mut stream = raw::connect(kindred.edge());
        stream.write_all(bytes).unwrap();
        assert_eq!(raw::read_all(&mut stream), b"", "{bytes:?}");
    }
    kindred.assert_metric("kindred_heads_refused_total", &["reason=\"slow\""], 3.0);
    kindred.assert_metric("kindred_connections", &[], 0.0);
}
