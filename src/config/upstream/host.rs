//! The numbers of this host and of this edge on it in every `disagg_request_id`.
//!
//! As upstream, the host's default comes from its MAC address, so that it stays the same over
//! restarts and needs no agreement, and the edge's from the environment. Hosts whose numbers meet
//! can be told apart with `node_id`, edges of one host with `process_id`.

use std::{fs, path::Path};

use crate::config::{
    raw::Field,
    report::{Place, Report},
    words::shown,
};

/// Where upstream's edge processes find their number (specification section 1.5).
const PROCESS_VARIABLE: &str = "TRTLLM_DISAGG_WORKER_PROCESS_ID";
/// The largest process number that an id has room for.
const LAST_PROCESS: u8 = 63;

/// Upstream's `node_id`.
pub(super) fn node_id(field: Option<Field>, report: &mut Report) -> u8 {
    field
        .filter(|field| !field.is_null())
        .and_then(|field| field.integer(report, 0..=u8::MAX))
        .unwrap_or_else(default_node_id)
}

/// `process_id`; without it the environment's, else 0. Only an edge that is `wanted` minds what the
/// environment says.
pub(super) fn process_id(
    field: Option<Field>,
    environment: &dyn Fn(&str) -> Option<String>,
    wanted: bool,
    report: &mut Report,
) -> u8 {
    if let Some(field) = field.filter(|field| !field.is_null()) {
        return field.integer(report, 0..=LAST_PROCESS).unwrap_or(0);
    }
    let Some(text) = environment(PROCESS_VARIABLE).filter(|_| wanted) else {
        return 0;
    };
    match text.trim().parse() {
        Ok(number) if number <= LAST_PROCESS => number,
        _ => {
            let what = format!(
                "the environment variable {PROCESS_VARIABLE} is {}; it must be a whole number from 0 \
                 to {LAST_PROCESS}, different for each edge of this host",
                shown(&text)
            );
            report.error(&Place::file().key("process_id", None), what);
            0
        }
    }
}

fn default_node_id() -> u8 {
    mac(Path::new("/sys/class/net"))
        .or_else(|| named(Path::new("/etc/machine-id")))
        .or_else(|| named(Path::new("/proc/sys/kernel/hostname")))
        .unwrap_or(0)
}

/// The MAC address modulo 256, which is its last byte. Of several, one that its maker assigned goes
/// before one that software made up.
fn mac(interfaces: &Path) -> Option<u8> {
    let mut addresses: Vec<(bool, String, u8)> = fs::read_dir(interfaces)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let text = fs::read_to_string(entry.path().join("address")).ok()?;
            let bytes: Vec<u8> = text
                .trim()
                .split(':')
                .map(|byte| u8::from_str_radix(byte, 16).ok())
                .collect::<Option<_>>()?;
            let made_up = bytes.first()? & 2 != 0;
            let last = *bytes.last()?;
            let real = bytes.len() == 6 && bytes.iter().any(|byte| *byte != 0);
            real.then(|| {
                (
                    made_up,
                    entry.file_name().to_string_lossy().into_owned(),
                    last,
                )
            })
        })
        .collect();
    addresses.sort();
    addresses.first().map(|(_, _, last)| *last)
}

/// A hash (FNV-1a) of the text of a file.
fn named(path: &Path) -> Option<u8> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let [a, b, c, d] = hash.to_le_bytes();
    (!text.is_empty()).then_some(a ^ b ^ c ^ d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_makers_address_goes_before_a_made_up_one() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, address) in [
            ("docker0", "02:42:ac:11:00:07\n"),
            ("eth0", "a8:a1:59:00:00:2a\n"),
            ("lo", "00:00:00:00:00:00\n"),
        ] {
            let interface = folder.path().join(name);
            fs::create_dir(&interface).expect("a folder");
            fs::write(interface.join("address"), address).expect("a file");
        }
        assert_eq!(mac(folder.path()), Some(0x2a));
        assert_eq!(mac(Path::new("/nowhere")), None);
    }

    #[test]
    fn without_an_address_the_hosts_name_serves() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("name");
        fs::write(&file, "host-a\n").expect("a file");
        let first = named(&file);
        assert!(first.is_some());
        assert_eq!(first, named(&file));
        fs::write(&file, "\n").expect("a file");
        assert_eq!(named(&file), None);
    }
}
