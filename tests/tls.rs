//! TLS on the clients' port, with curl as the client.

mod support;

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use kindred::wire::Role;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    raw,
    reload::{reload, reloads},
};

const CHAT: &str = "/v1/chat/completions";

/// A folder with a certificate for 127.0.0.1 under each name, and its key.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
            fs::write(folder.path().join(format!("{name}.crt")), cert.pem()).unwrap();
            let key = signing_key.serialize_pem();
            fs::write(folder.path().join(format!("{name}.key")), key).unwrap();
        }
        Self(folder)
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).display().to_string()
    }

    /// The section that names a certificate and a key.
    fn section(&self, cert: &str, key: &str) -> String {
        let (cert, key) = (self.path(cert), self.path(key));
        format!("tls: {{cert_file: '{cert}', key_file: '{key}'}}")
    }
}

fn start(certificates: &Certificates) -> (Fleet, Kindred) {
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&fleet.yaml(&certificates.section("a.crt", "a.key")));
    assert!(kindred.announced.contains("serving on https://127.0.0.1:"));
    (fleet, kindred)
}

/// A curl that trusts one certificate and writes what came, then version and status.
fn curl(kindred: &Kindred, trusted: &str, body: &str, more: &[&str]) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-N", "--max-time", "60", "--cacert", trusted])
        .args(["-H", "content-type: application/json", "-d", body])
        .args(["-w", "\n%{http_version} %{http_code}"])
        .args(more)
        .arg(format!("https://{}{CHAT}", kindred.edge()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    curl
}

fn run(mut curl: Command) -> (Output, String) {
    let output = curl.output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

fn body(stream: bool) -> String {
    let mut body = support::chat("hello");
    body["stream"] = stream.into();
    body.to_string()
}

#[test]
fn clients_choose_their_http_by_alpn() {
    let certificates = Certificates::new(&["a"]);
    let (_fleet, kindred) = start(&certificates);
    let trusted = certificates.path("a.crt");
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2"), ("--no-alpn", "1.1")] {
        for stream in [false, true] {
            let (output, text) = run(curl(&kindred, &trusted, &body(stream), &[option]));
            assert!(output.status.success(), "{output:?}");
            let end = format!("\n{version} 200");
            assert!(text.ends_with(&end), "{option}: {text}");
            assert_eq!(text.contains("data: [DONE]"), stream, "{text}");
        }
    }
    for (option, good) in [("--tlsv1.2", true), ("--tlsv1.3", true)] {
        let (output, _) = run(curl(&kindred, &trusted, &body(false), &[option]));
        assert_eq!(output.status.success(), good, "{option}");
    }
    let (output, _) = run(curl(
        &kindred,
        &trusted,
        &body(false),
        &["--tls-max", "1.1"],
    ));
    assert!(!output.status.success(), "TLS 1.1 is too old");
    kindred.assert_idle();
}

#[test]
fn large_bodies_come_with_and_without_a_length() {
    let certificates = Certificates::new(&["a"]);
    let (_fleet, kindred) = start(&certificates);
    let trusted = certificates.path("a.crt");
    let mut large = support::chat("hello");
    large["user"] = "u".repeat(1 << 20).into();
    let file = certificates.0.path().join("body.json");
    fs::write(&file, large.to_string()).unwrap();
    let from_file = format!("@{}", file.display());
    for (options, status) in [
        (&["--http1.1"][..], 200),
        (&["--http2"], 200),
        (&["--http1.1", "-H", "transfer-encoding: chunked"], 200),
    ] {
        let (output, text) = run(curl(&kindred, &trusted, &from_file, options));
        assert!(
            text.ends_with(&format!(" {status}")),
            "{options:?}: {output:?}"
        );
    }
    kindred.assert_idle();
}

/// Starts curl and waits until it got its first event.
fn streaming(mut curl: Command) -> Child {
    let mut child = curl.spawn().unwrap();
    let mut first = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    assert_eq!(&first, b"data: ");
    child
}

#[test]
fn case_h02_a_client_that_leaves_is_noticed_through_tls() {
    let certificates = Certificates::new(&["a"]);
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = std::time::Duration::from_millis(100);
        config.answer_tokens = 100_000;
    });
    let kindred = Kindred::serve(&fleet.yaml(&certificates.section("a.crt", "a.key")));
    let trusted = certificates.path("a.crt");
    let mut long = support::chat("hello");
    long["stream"] = true.into();
    long["max_tokens"] = 50_000.into();
    let cancelled = |count: f64| {
        let label = ["outcome=\"client_cancel\""];
        kindred.assert_metric("kindred_requests_total", &label, count);
    };
    let mut left = 0.0;
    for option in ["--http1.1", "--http2"] {
        // In its stream.
        let mut child = streaming(curl(&kindred, &trusted, &long.to_string(), &[option]));
        child.kill().unwrap();
        child.wait().unwrap();
        left += 1.0;
        cancelled(left);
        kindred.assert_idle();
        // While its context leg runs.
        let worker = fleet.of(Role::Context).next().unwrap();
        worker.fault(1, "delay=1h");
        let before = worker.requests().len();
        let mut child = curl(&kindred, &trusted, &long.to_string(), &[option])
            .spawn()
            .unwrap();
        eventually("the leg runs", || {
            (worker.requests().len() > before).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        left += 1.0;
        cancelled(left);
        kindred.assert_idle();
    }
}

#[test]
fn a_reload_swaps_the_certificate_and_breaks_no_connection() {
    let certificates = Certificates::new(&["a", "b"]);
    let fleet = fleet::start(1, 1, |config| {
        config.engine.decode_interval = std::time::Duration::from_millis(5);
        config.answer_tokens = 100;
    });
    let kindred = Kindred::serve(&fleet.yaml(&certificates.section("a.crt", "a.key")));
    let mut long = support::chat("hello");
    long["stream"] = true.into();
    long["max_tokens"] = 90.into();
    let child = streaming(curl(
        &kindred,
        &certificates.path("a.crt"),
        &long.to_string(),
        &[],
    ));
    reload(
        &kindred,
        &fleet.yaml(&certificates.section("b.crt", "b.key")),
        "applied",
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("data: [DONE]"), "the stream went on: {text}");
    let trusts = |name: &str| {
        let trusted = certificates.path(name);
        run(curl(&kindred, &trusted, &body(false), &[]))
            .0
            .status
            .success()
    };
    assert!(trusts("b.crt"), "the new certificate is shown");
    assert!(!trusts("a.crt"), "the old one is not");
    // The same file with other content is read as well.
    fs::copy(certificates.path("a.crt"), certificates.path("b.crt")).unwrap();
    fs::copy(certificates.path("a.key"), certificates.path("b.key")).unwrap();
    reload(
        &kindred,
        &fleet.yaml(&certificates.section("b.crt", "b.key")),
        "applied",
    );
    assert!(trusts("a.crt"));
}

#[test]
fn a_reload_with_a_bad_certificate_or_without_tls_changes_nothing() {
    let certificates = Certificates::new(&["a", "b"]);
    let (fleet, kindred) = start(&certificates);
    reload(
        &kindred,
        &fleet.yaml(&certificates.section("b.crt", "a.key")),
        "rejected",
    );
    reload(&kindred, &fleet.yaml(""), "rejected");
    assert_eq!(reloads(&kindred, "applied"), 0.0);
    let why = "tls (with or without) cannot change while running";
    eventually("the log says why", || {
        kindred.log().contains(why).then_some(())
    });
    let trusted = certificates.path("a.crt");
    assert!(
        run(curl(&kindred, &trusted, &body(false), &[]))
            .0
            .status
            .success()
    );
}

#[test]
fn files_that_cannot_be_used_are_named_at_once() {
    let certificates = Certificates::new(&["a", "b"]);
    fs::write(certificates.path("odd.crt"), "not PEM").unwrap();
    let begin = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    fs::write(certificates.path("broken.crt"), begin).unwrap();
    let fleet = fleet::start(1, 1, |_| {});
    for (cert, key, words) in [
        ("a.crt", "b.key", "tls.key_file: "),
        ("a.crt", "b.key", "is not the key of the first certificate"),
        ("a.crt", "a.crt", "holds nothing like a private key"),
        ("none.crt", "a.key", "cannot be read"),
        ("odd.crt", "a.key", "holds no certificate in PEM"),
        ("odd.crt", "a.key", "tls.cert_file: "),
        ("broken.crt", "a.key", "tls.cert_file: "),
    ] {
        let file = certificates.0.path().join("kindred.yaml");
        fs::write(&file, fleet.yaml(&certificates.section(cert, key))).unwrap();
        for command in ["check", "serve"] {
            let args = [command, "--config", file.to_str().unwrap()];
            let (code, _, error) = support::run(&args, "");
            assert_eq!(code, 2, "{command} {cert} {key}: {error}");
            assert!(error.contains(words), "{command} {cert} {key}: {error}");
            assert!(
                error.contains(Path::new(&file).to_str().unwrap()),
                "{error}"
            );
        }
    }
}

#[test]
fn plain_http_at_a_tls_port_ends_at_once() {
    let certificates = Certificates::new(&["a"]);
    let (_fleet, kindred) = start(&certificates);
    let mut stream = raw::connect(kindred.edge());
    stream.write_all(&raw::request(CHAT, &[], b"{}")).unwrap();
    let answer = raw::try_read_answer(&mut stream);
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(kindred.metric("kindred_requests_total", &[]), 0.0);
}
