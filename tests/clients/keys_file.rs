//! A file of keys that is changed in every way there is, while the edge runs.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{bearer, digest, section, start};
use crate::support::{
    Kindred, eventually,
    reload::{reload, reloads},
};

fn keys(of: &[(&str, &str)]) -> String {
    of.iter()
        .map(|(client, key)| format!("{client}: ['{}']\n", digest(key)))
        .collect()
}

fn named(path: &Path) -> String {
    format!(
        "  keys_file: '{}'\n  failed_attempts: off\n",
        path.display()
    )
}

#[track_caller]
fn becomes(kindred: &Kindred, key: &str, status: u16) {
    eventually(&format!("{key} is answered {status}"), || {
        (bearer(kindred, key).status == status).then_some(())
    });
}

fn rejected(kindred: &Kindred) -> f64 {
    let labels = ["source=\"keys_file\"", "result=\"rejected\""];
    kindred.metric("kindred_credential_reloads_total", &labels)
}

#[test]
fn it_is_read_anew_however_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.yaml");
    fs::write(&file, keys(&[("ada", "first")])).unwrap();
    let (_fleet, kindred) = start(&named(&file));
    assert_eq!(bearer(&kindred, "first").status, 200);
    assert_eq!(
        bearer(&kindred, "ada-key").status,
        200,
        "those of the configuration too"
    );

    // In place.
    fs::write(&file, keys(&[("ada", "second"), ("ben", "third")])).unwrap();
    becomes(&kindred, "second", 200);
    assert_eq!(bearer(&kindred, "third").status, 200);
    assert_eq!(bearer(&kindred, "first").status, 401);

    // By a rename over it.
    let next = folder.path().join("next");
    fs::write(&next, keys(&[("ben", "fourth")])).unwrap();
    fs::rename(&next, &file).unwrap();
    becomes(&kindred, "fourth", 200);
    assert_eq!(bearer(&kindred, "second").status, 401);

    // Nothing in it, on purpose.
    fs::write(&file, "{}").unwrap();
    becomes(&kindred, "fourth", 401);
    assert_eq!(bearer(&kindred, "ada-key").status, 200);
    assert_eq!(
        reloads(&kindred, "applied"),
        0.0,
        "none of this is a reload"
    );
}

#[test]
fn a_link_that_is_swapped_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let version = |name: &str, key: &str| {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(
            folder.path().join(name).join("keys.yaml"),
            keys(&[("ada", key)]),
        )
        .unwrap();
    };
    // As a ConfigMap is mounted.
    version("..one", "first");
    symlink("..one", folder.path().join("..data")).unwrap();
    let file = folder.path().join("keys.yaml");
    symlink("..data/keys.yaml", &file).unwrap();
    let (_fleet, kindred) = start(&named(&file));
    assert_eq!(bearer(&kindred, "first").status, 200);
    version("..two", "second");
    symlink("..two", folder.path().join("..data_tmp")).unwrap();
    fs::rename(
        folder.path().join("..data_tmp"),
        folder.path().join("..data"),
    )
    .unwrap();
    becomes(&kindred, "second", 200);
    assert_eq!(bearer(&kindred, "first").status, 401);
}

#[test]
fn a_bad_file_never_replaces_a_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.yaml");
    fs::write(&file, keys(&[("ada", "first")])).unwrap();
    let (_fleet, kindred) = start(&named(&file));
    let whole = keys(&[("ada", "second"), ("ben", "third")]);
    let cases = [
        (whole[..whole.len() - 20].to_owned(), "half of it"),
        (String::new(), "is empty"),
        (
            "ada: [the-key-itself]\n".to_owned(),
            "is not a SHA-256 digest",
        ),
        (keys(&[("eve", "second")]), "gateway.clients does not"),
        (keys(&[("ben", "ada-key")]), "a key of another client too"),
        (keys(&[("ada", "second"), ("ada", "third")]), "half of it"),
        ("[]".to_owned(), "must map names"),
    ];
    for (number, (text, words)) in cases.iter().enumerate() {
        fs::write(&file, text).unwrap();
        // A file that is empty for a moment while it is written may count as well.
        eventually(words, || {
            (rejected(&kindred) >= (number + 1) as f64).then_some(())
        });
        if *words != "half of it" {
            eventually(words, || kindred.log().contains(words).then_some(()));
        }
        assert_eq!(bearer(&kindred, "first").status, 200, "{words}");
        assert_eq!(bearer(&kindred, "second").status, 401, "{words}");
    }
    assert!(!kindred.log().contains("the-key-itself"));
    fs::remove_file(&file).unwrap();
    eventually("it is missed", || {
        kindred.log().contains("cannot be read").then_some(())
    });
    assert_eq!(bearer(&kindred, "first").status, 200);
    fs::write(&file, whole).unwrap();
    becomes(&kindred, "third", 200);
}

#[test]
fn a_reload_reads_it_too_or_fails_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one.yaml", "two.yaml"].map(|name| folder.path().join(name));
    fs::write(&one, keys(&[("ada", "first")])).unwrap();
    fs::write(&two, "ada: [wrong]\n").unwrap();
    let (fleet, kindred) = start(&named(&one));
    reload(&kindred, &fleet.yaml(&section(&named(&two))), "rejected");
    assert_eq!(bearer(&kindred, "first").status, 200);
    fs::write(&two, keys(&[("ada", "second")])).unwrap();
    reload(&kindred, &fleet.yaml(&section(&named(&two))), "applied");
    assert_eq!(bearer(&kindred, "second").status, 200);
    assert_eq!(bearer(&kindred, "first").status, 401);
    // The new one is followed, the old one no more.
    fs::write(&two, keys(&[("ada", "third")])).unwrap();
    becomes(&kindred, "third", 200);
    reload(&kindred, &fleet.yaml(&section("")), "applied");
    assert_eq!(bearer(&kindred, "third").status, 401, "no file any more");
}
