//! TLS between the edge, worker filters and what is behind them: who is believed, by certificates on
//! both sides, and what a reload changes.

mod support;

use std::{fs, process::Command};

use kindred::wire::Role;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use support::{
    Kindred, eventually,
    fleet::{self, Fleet},
    guarded, raw,
    reload::{ask, reload},
};

const KEY: &str = "the-key-of-the-house-0123456789ab";
/// The name in the certificate of every filter.
const NAME: &str = "workers.example";

/// A folder with two roots, and below each a certificate of workers and one of the edge.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for root in ["one", "two"] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, root);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            let issuer =
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            fs::write(folder.path(&format!("{root}.crt")), issuer.pem()).unwrap();
            for (whose, name) in [
                ("worker", NAME),
                ("edge", "edge.example"),
                ("ip", "127.0.0.1"),
            ] {
                let params = CertificateParams::new([name.to_owned()]).unwrap();
                let key = KeyPair::generate().unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap();
                let file = |kind: &str| folder.path(&format!("{whose}-of-{root}.{kind}"));
                fs::write(file("crt"), certificate.pem()).unwrap();
                fs::write(file("key"), key.serialize_pem()).unwrap();
            }
        }
        folder
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).display().to_string()
    }

    /// `cert_file` and `key_file` of one of them.
    fn pair(&self, name: &str) -> String {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        format!("cert_file: '{}', key_file: '{}'", path("crt"), path("key"))
    }

    /// What the edge is told of its workers: which root, what it shows, what their name is.
    fn workers(&self, root: &str, shown: Option<&str>, name: &str) -> String {
        let shown = shown.map_or(String::new(), |shown| format!(", {}", self.pair(shown)));
        let root = self.path(&format!("{root}.crt"));
        format!("tls: {{workers: {{ca_file: '{root}', server_name: {name}{shown}}}}}\n")
    }
}

/// Filters with TLS that take only certificates below the first root, and the workers behind them.
struct Filters {
    folder: Folder,
    fleet: Fleet,
    filters: Kindred,
}

impl Filters {
    fn start() -> Self {
        let folder = Folder::new();
        let fleet = fleet::start(1, 1, |config| {
            config.engine.decode_interval = std::time::Duration::from_millis(5);
            config.answer_tokens = 100;
        });
        let mut yaml = format!(
            "internal_request_auth_key: {KEY}\nadmin: {{listen: '127.0.0.1:0'}}\nworker_filters:\n"
        );
        for worker in &fleet.workers {
            yaml.push_str(&format!(
                "- {{name: {}, listen: '127.0.0.1:0', worker: '{}', server_role: {}, \
                 tls: {{{}, client_ca_file: '{}', client_auth: required}}}}\n",
                worker.name,
                worker.address,
                worker.role.label(),
                folder.pair("worker-of-one"),
                folder.path("one.crt"),
            ));
        }
        let filters = Kindred::serve(&yaml);
        assert!(filters.announced.contains("on https://127.0.0.1:"));
        Self {
            folder,
            fleet,
            filters,
        }
    }

    /// The file of an edge in front of them.
    fn edge(&self, more: &str) -> String {
        let of = |role| guarded::addresses(&self.filters, role);
        let more = format!("internal_request_auth_key: {KEY}\n{more}");
        fleet::yaml(&of(Role::Context), &of(Role::Generation), &more)
    }

    fn asked(&self) -> usize {
        let workers = self.fleet.workers.iter();
        workers.map(|worker| worker.requests().len()).sum()
    }
}

#[test]
fn both_legs_and_probes_go_through_tls_with_certificates_on_both_sides() {
    let filters = Filters::start();
    let workers = filters.folder.workers("one", Some("edge-of-one"), NAME);
    let probing = "health: {active: true, interval: 100ms}\n";
    let edge = Kindred::serve(&filters.edge(&format!("{workers}{probing}")));
    assert_eq!(ask(&edge, &[]).status, 200);
    assert_eq!(filters.asked(), 2);
    let models = raw::get(edge.edge(), "/v1/models");
    assert_eq!(models.status, 200, "{}", models.text());
    eventually("probes are answered", || {
        let good = edge.metric("kindred_probes_total", &["result=\"good\""]);
        (good >= 2.0).then_some(())
    });
    edge.assert_idle();
}

#[test]
fn no_request_goes_to_a_worker_that_is_not_believed_or_does_not_believe() {
    let filters = Filters::start();
    let shown = Some("edge-of-one");
    for (what, workers) in [
        ("another root", filters.folder.workers("two", shown, NAME)),
        (
            "another name",
            filters.folder.workers("one", shown, "other.example"),
        ),
        ("the host as name", {
            let root = filters.folder.path("one.crt");
            let pair = filters.folder.pair("edge-of-one");
            format!("tls: {{workers: {{ca_file: '{root}', {pair}}}}}\n")
        }),
        ("nothing shown", filters.folder.workers("one", None, NAME)),
        (
            "a stranger's",
            filters.folder.workers("one", Some("edge-of-two"), NAME),
        ),
    ] {
        let edge = Kindred::serve(&filters.edge(&workers));
        let answer = ask(&edge, &[]);
        assert_eq!(answer.status, 502, "{what}: {}", answer.text());
        assert_eq!(
            answer.json()["error"]["code"],
            "worker_unreachable",
            "{what}"
        );
        let words = "no TLS connection could be made";
        assert!(answer.text().contains(words), "{what}: {}", answer.text());
        assert_eq!(filters.asked(), 0, "{what}");
    }
    // In the clear, nothing comes back that could be taken for an answer.
    let edge = Kindred::serve(&filters.edge(""));
    assert_eq!(ask(&edge, &[]).status, 502);
    assert_eq!(filters.asked(), 0);
}

#[test]
fn the_log_says_why_a_worker_is_not_spoken_to() {
    let filters = Filters::start();
    let workers = filters.folder.workers("two", None, NAME);
    let edge = Kindred::serve(&filters.edge(&workers));
    assert_eq!(ask(&edge, &[]).status, 502);
    let why = "no TLS connection to a worker";
    eventually("the log says why", || {
        let log = edge.log();
        (log.contains(why) && log.contains("UnknownIssuer")).then_some(())
    });
}

#[test]
fn a_reload_changes_who_is_believed_and_lets_answers_end() {
    let filters = Filters::start();
    let of = |root, shown| filters.edge(&filters.folder.workers(root, Some(shown), NAME));
    let edge = Kindred::serve(&of("one", "edge-of-one"));
    let mut body = support::chat("hello");
    body["stream"] = true.into();
    body["max_tokens"] = 90.into();
    let mut stream = raw::connect(edge.edge());
    let request = raw::request("/v1/chat/completions", &[], body.to_string().as_bytes());
    std::io::Write::write_all(&mut stream, &request).unwrap();
    eventually("the answer has begun", || {
        (filters.asked() == 2).then_some(())
    });
    reload(&edge, &of("two", "edge-of-one"), "applied");
    let answer = raw::try_read_answer(&mut stream).unwrap();
    assert!(answer.text().contains("data: [DONE]"), "{}", answer.text());
    // What was pooled under the old root is not used again.
    assert_eq!(ask(&edge, &[]).status, 502);
    reload(&edge, &of("one", "edge-of-one"), "applied");
    assert_eq!(ask(&edge, &[]).status, 200);
    // Files that cannot be used change nothing.
    fs::write(filters.folder.path("two.crt"), "no certificate").unwrap();
    reload(&edge, &of("two", "edge-of-one"), "rejected");
    assert_eq!(ask(&edge, &[]).status, 200);
    let key = "tls.workers.ca_file: ";
    eventually("the log names the key", || {
        edge.log().contains(key).then_some(())
    });
}

#[test]
fn addresses_may_be_left_without_tls_for_a_while() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let plain = fleet.workers.iter();
    let plain: Vec<_> = plain
        .map(|worker| format!("'{}'", worker.address))
        .collect();
    let tls = |plain: &[String]| {
        let (root, plain) = (folder.path("one.crt"), plain.join(", "));
        fleet.yaml(&format!(
            "tls: {{workers: {{ca_file: '{root}', plain: [{plain}]}}}}"
        ))
    };
    let edge = Kindred::serve(&tls(&plain));
    assert_eq!(ask(&edge, &[]).status, 200);
    reload(&edge, &tls(&[]), "applied");
    assert_eq!(ask(&edge, &[]).status, 502);
}

#[test]
fn a_filter_believes_its_worker_by_its_certificate() {
    let filters = Filters::start();
    let (_, behind) = filters.filters.filters.first().unwrap();
    let chain = |root: &str| {
        format!(
            "internal_request_auth_key: {KEY}\nadmin: {{listen: '127.0.0.1:0'}}\n\
             worker_filters:\n- {{name: front, listen: '127.0.0.1:0', worker: '{behind}', {}}}\n",
            filters
                .folder
                .workers(root, Some("edge-of-one"), NAME)
                .trim()
        )
    };
    for (root, status) in [("one", 200), ("two", 502)] {
        let front = Kindred::serve(&chain(root));
        let (_, address) = front.filters.first().unwrap();
        let answer = raw::get(*address, "/health");
        assert_eq!(answer.status, status, "{root}: {}", answer.text());
    }
}

#[test]
fn the_operators_port_shows_and_asks_for_certificates_and_tells_when_they_end() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let admin = format!(
        "admin: {{listen: '127.0.0.1:0', tls: {{{}, client_ca_file: '{}', client_auth: required}}}}",
        folder.pair("ip-of-one"),
        folder.path("two.crt"),
    );
    let yaml = fleet.yaml("");
    let plain = yaml
        .lines()
        .find(|line| line.starts_with("admin:"))
        .unwrap();
    let kindred = Kindred::serve(&yaml.replace(plain, &admin));
    assert!(kindred.announced.contains("kindred: admin on https://"));
    let page = |shown: Option<&str>| {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--max-time",
            "60",
            "--cacert",
            &folder.path("one.crt"),
        ]);
        if let Some(name) = shown {
            curl.args(["--cert", &folder.path(&format!("{name}.crt"))]);
            curl.args(["--key", &folder.path(&format!("{name}.key"))]);
        }
        curl.arg(format!("https://{}/metrics", kindred.admin.unwrap()));
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let metrics = page(Some("edge-of-two"));
    for key in ["admin.tls.cert_file", "admin.tls.client_ca_file"] {
        let series = format!("kindred_certificate_expiry_timestamp_seconds{{key=\"{key}\"}}");
        assert!(metrics.contains(&series), "{metrics}");
    }
    for refused in [None, Some("edge-of-one")] {
        assert_eq!(page(refused), "", "{refused:?}");
    }
}

#[test]
fn a_certificate_that_has_ended_is_warned_of() {
    let folder = Folder::new();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let key = KeyPair::generate().unwrap();
    let old = params.self_signed(&key).unwrap();
    fs::write(folder.path("old.crt"), old.pem()).unwrap();
    fs::write(folder.path("old.key"), key.serialize_pem()).unwrap();
    let fleet = fleet::start(1, 1, |_| {});
    let file = folder.path("kindred.yaml");
    fs::write(
        &file,
        fleet.yaml(&format!("tls: {{{}}}", folder.pair("old"))),
    )
    .unwrap();
    let (code, _, error) = support::run(&["check", "--config", &file], "");
    assert_eq!(code, 0, "{error}");
    let words = "old.crt has ended at 2021-01-01T00:00:00+00:00";
    assert!(
        error.contains("tls.cert_file: ") && error.contains(words),
        "{error}"
    );
}
