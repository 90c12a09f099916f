//! Certificates of clients, with curl as the client: who is believed, and who that is.

mod support;

use std::{fs, process::Command};

use kindred::wire::Role;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use support::{
    Kindred,
    fleet::{self, Fleet},
    reload::reload,
    run,
};

const CHAT: &str = "/v1/chat/completions";
const KNOWN: &str = "spiffe://example/agents";

/// A folder with the server's certificate, two roots, and certificates of clients below them.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let server = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        folder.write("server", &server.cert.pem(), &server.signing_key);
        for root in ["one", "two"] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, root);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            let key = KeyPair::generate().unwrap();
            let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
            fs::write(folder.path(&format!("{root}.crt")), issuer.pem()).unwrap();
            // Certificates for the year after `begins`.
            for (name, uri, begins) in [
                ("known", KNOWN, None),
                ("stranger", "spiffe://example/other", None),
                ("expired", KNOWN, Some(2001)),
                ("early", KNOWN, Some(2300)),
            ] {
                let mut params = CertificateParams::default();
                // A name for people proves nothing.
                params.distinguished_name.push(DnType::CommonName, KNOWN);
                params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
                if let Some(begins) = begins {
                    params.not_before = date_time_ymd(begins, 1, 1);
                    params.not_after = date_time_ymd(begins + 1, 1, 1);
                }
                let key = KeyPair::generate().unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap();
                folder.write(&format!("{name}-of-{root}"), &certificate.pem(), &key);
            }
        }
        folder
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) {
        fs::write(self.path(&format!("{name}.crt")), certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn path(&self, file: &str) -> String {
        self.0.path().join(file).display().to_string()
    }

    fn yaml(&self, fleet: &Fleet, root: &str, auth: &str) -> String {
        fleet.yaml(&format!(
            "tls: {{cert_file: '{}', key_file: '{}', client_ca_file: '{}', client_auth: {auth}}}\n\
             gateway:\n  clients:\n  - {{name: agents, certificate_names: ['{KNOWN}']}}\n",
            self.path("server.crt"),
            self.path("server.key"),
            self.path(&format!("{root}.crt")),
        ))
    }

    /// The status that a request is answered with; `None` where there is no connection.
    fn status(&self, kindred: &Kindred, certificate: Option<&str>, version: &str) -> Option<u16> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", version, "-o", "/dev/null"])
            .args(["-w", "%{http_code}", "--cacert", &self.path("server.crt")])
            .args(["-H", "content-type: application/json"])
            .args(["-d", &support::chat("hello").to_string()]);
        if let Some(name) = certificate {
            curl.args(["--cert", &self.path(&format!("{name}.crt"))]);
            curl.args(["--key", &self.path(&format!("{name}.key"))]);
        }
        curl.arg(format!("https://{}{CHAT}", kindred.edge()));
        let output = curl.output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap().parse().unwrap();
        (status != 0).then_some(status)
    }
}

const VERSIONS: [&str; 2] = ["--http1.1", "--http2"];

#[test]
fn a_certificate_says_who_a_client_is() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&folder.yaml(&fleet, "one", "optional"));
    for version in VERSIONS {
        let status = |certificate| folder.status(&kindred, certificate, version);
        assert_eq!(status(Some("known-of-one")), Some(200), "{version}");
        assert_eq!(status(Some("stranger-of-one")), Some(403), "{version}");
        assert_eq!(status(None), Some(401), "{version}");
        // Another root's certificate is believed by nobody, whatever it says.
        assert_eq!(status(Some("known-of-two")), None, "{version}");
    }
    let by_certificate = ["method=\"certificate\"", "outcome=\"ok\""];
    kindred.assert_metric("kindred_authentications_total", &by_certificate, 2.0);
    kindred.assert_idle();
}

#[test]
fn a_certificate_is_good_in_its_time_only() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&folder.yaml(&fleet, "one", "optional"));
    for version in VERSIONS {
        let status = |certificate| folder.status(&kindred, Some(certificate), version);
        assert_eq!(status("expired-of-one"), None, "{version}");
        assert_eq!(status("early-of-one"), None, "{version}");
        assert_eq!(status("known-of-one"), Some(200), "{version}");
    }
    for role in [Role::Context, Role::Generation] {
        assert_eq!(fleet.requests(role).len(), VERSIONS.len());
    }
}

#[test]
fn where_one_is_required_there_is_no_connection_without() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&folder.yaml(&fleet, "one", "required"));
    for version in VERSIONS {
        let status = |certificate| folder.status(&kindred, certificate, version);
        assert_eq!(status(None), None, "{version}");
        assert_eq!(status(Some("known-of-two")), None, "{version}");
        assert_eq!(status(Some("known-of-one")), Some(200), "{version}");
    }
}

#[test]
fn a_reload_swaps_the_roots_and_nothing_else() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let kindred = Kindred::serve(&folder.yaml(&fleet, "one", "optional"));
    let status = |certificate| folder.status(&kindred, Some(certificate), "--http2");
    reload(&kindred, &folder.yaml(&fleet, "two", "optional"), "applied");
    assert_eq!(status("known-of-two"), Some(200));
    assert_eq!(status("known-of-one"), None);
    // Whether one is asked for is a restart, and a bad file changes nothing.
    reload(
        &kindred,
        &folder.yaml(&fleet, "one", "required"),
        "rejected",
    );
    reload(
        &kindred,
        &folder.yaml(&fleet, "missing", "optional"),
        "rejected",
    );
    assert_eq!(status("known-of-two"), Some(200));
}

#[test]
fn what_cannot_work_is_said_with_its_key() {
    let folder = Folder::new();
    let fleet = fleet::start(1, 1, |_| {});
    let good = folder.yaml(&fleet, "one", "optional");
    let ca = format!(", client_ca_file: '{}'", folder.path("one.crt"));
    for (file, key) in [
        (good.replace(&ca, ""), "tls.client_auth"),
        (
            good.replace("one.crt", "one-that-is-not.crt"),
            "tls.client_ca_file",
        ),
        (good.replace("one.crt", "server.key"), "tls.client_ca_file"),
        (good.replace("optional", "perhaps"), "tls.client_auth"),
    ] {
        assert_ne!(file, good);
        let path = folder.path("kindred.yaml");
        fs::write(&path, file).unwrap();
        let (code, _, told) = run(&["check", "--config", &path], "");
        assert_eq!(code, 2, "{key}: {told}");
        assert!(told.contains(key), "{key}: {told}");
    }
}
