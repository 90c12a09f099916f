//! Header fields as a client sends them, one a line: after pruning nothing internal is left, and the
//! conversation's id is never blank.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, header::CONNECTION};
use kindred::{
    gateway::prune::Pruner,
    wire::{
        conversation,
        headers::{self, PARENT_HEADERS},
    },
};
use libfuzzer_sys::fuzz_target;

const OWN: [&str; 2] = ["x-team-parent", "x-team"];

fuzz_target!(|bytes: &[u8]| {
    let mut map = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let at = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(at.unwrap_or(line.len()));
        let value = value.get(1..).unwrap_or_default();
        let name = HeaderName::from_bytes(name.trim_ascii());
        let value = HeaderValue::from_bytes(value.trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            map.append(name, value);
        }
    }
    let pruner = Pruner::new([OWN[0]].into_iter(), &[OWN[1].to_owned()]);
    let pruned = pruner.prune(&map);
    for name in &pruned.remove {
        map.remove(name);
    }
    if let Some(connection) = pruned.connection {
        map.insert(CONNECTION, connection);
    }
    let internal = |name: &[u8]| {
        let named = PARENT_HEADERS.iter().chain(&OWN);
        let mut named = named.map(|known| headers::is_alike(name, known.as_bytes()));
        headers::is_internal(name) || named.any(|alike| alike)
    };
    assert!(!map.keys().any(|name| internal(name.as_str().as_bytes())));
    let options = map.get_all(CONNECTION).iter();
    let mut options = options.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    assert!(!options.any(|option| internal(option.trim_ascii())));

    if let Some(id) = conversation::from_headers(&map) {
        assert_eq!(headers::strip(&id), id);
        assert!(!id.is_empty());
    }
});
