//! What of a worker's words a client may read.
//!
//! Takes out of a message what tells of the fleet or of other people's data: addresses become aliases
//! or nothing, opaque state and lists of token ids become an ellipsis, and a text that never ends is
//! cut. It must never give back more than it was given.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::fleet::{Fleet, Instance};

/// What stands for an address that is no instance's.
const ADDRESS: &str = "(address)";
/// What stands for data.
const DATA: &str = "(...)";
/// Characters of a message at most.
const LONGEST: usize = 2048;
/// A run of base64 from this length on is data.
const LONG_RUN: usize = 64;
/// Names of data, which is data however short it is.
const NAMES: [&str; 4] = [
    "encoded_opaque_state",
    "ctx_info_endpoint",
    "prompt_token_ids_b64",
    "prompt_token_ids",
];
/// Ends of host names that are nobody's but a cluster's.
const CLUSTER: [&str; 5] = [".svc", ".local", ".internal", ".lan", ".cluster"];
/// A list of so many numbers is data.
const MANY_NUMBERS: usize = 8;

/// `said` as a client may read it. Instances of `fleets` go by their aliases.
pub fn mask(fleets: &[Arc<Fleet>], said: &str) -> String {
    let said = without_addresses(fleets, &without_data(said));
    match said.char_indices().nth(LONGEST) {
        Some((end, _)) => said.get(..end).unwrap_or_default().to_owned() + "...",
        None => said,
    }
}

/// Without long runs of base64 and long lists of numbers.
fn without_data(said: &str) -> String {
    let mut told = String::with_capacity(said.len());
    let mut rest = said;
    while let Some(first) = rest.chars().next() {
        let list = keyed(rest).or_else(|| number_list(rest, told.chars().next_back()));
        let run = rest.len() - rest.trim_start_matches(is_base64).len();
        let (taken, shown) = match (list, run) {
            (Some(length), _) => (length, DATA),
            (None, run @ LONG_RUN..) => (run, DATA),
            (None, 0) => (first.len_utf8(), ""),
            (None, run) => (run, ""),
        };
        let (this, next) = rest.split_at(taken);
        told.push_str(if shown.is_empty() { this } else { shown });
        rest = next;
    }
    told
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '_' | '-')
}

/// The length of a name that only the fleet uses and of what is said of it, at the beginning of `text`.
fn keyed(text: &str) -> Option<usize> {
    let name = NAMES.iter().find(|name| text.starts_with(**name))?;
    let after = text.get(name.len()..)?;
    let value = after.trim_start_matches(['"', '\'', ' ', ':', '=']);
    // A sentence about the field says nothing of it.
    if !after.get(..after.len() - value.len())?.contains([':', '=']) {
        return None;
    }
    let left = match value.strip_prefix(['[', '(', '{']) {
        Some(inside) => {
            let end = inside
                .find([']', ')', '}'])
                .map_or(inside.len(), |end| end + 1);
            inside.get(end..)?
        }
        None => value.trim_start_matches(|c: char| !c.is_whitespace() && !",;\"'}])".contains(c)),
    };
    Some(text.len() - left.len())
}

/// The length of a long list of numbers at the beginning of `text`, whole or cut. One without brackets
/// does not begin within a word.
fn number_list(text: &str, before: Option<char>) -> Option<usize> {
    let open = text.starts_with(['[', '(']);
    let inside = text.strip_prefix(['[', '(']).unwrap_or(text);
    let begins = |c: char| c.is_ascii_digit() || c == '-';
    if !open && (before.is_some_and(char::is_alphanumeric) || !inside.starts_with(begins)) {
        return None;
    }
    let of_list = |c: char| c.is_ascii_digit() || matches!(c, ',' | ' ' | '-' | '.' | '\n');
    let after = inside.trim_start_matches(of_list);
    let list = inside.strip_suffix(after)?;
    let list = if open {
        list
    } else {
        list.trim_end_matches([' ', '.', '\n', ',', '-'])
    };
    let numbers = list.split(',');
    let numbers = numbers.filter(|part| part.contains(|c: char| c.is_ascii_digit()));
    let closed = usize::from(open && after.starts_with([']', ')']));
    let length = usize::from(open) + list.len() + closed;
    (numbers.count() >= MANY_NUMBERS).then_some(length)
}

/// With aliases for the addresses of instances, and without any other.
fn without_addresses(fleets: &[Arc<Fleet>], said: &str) -> String {
    let of_address =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
    let mut told = String::with_capacity(said.len());
    let mut rest = said;
    while let Some(first) = rest.chars().next() {
        let next = rest.trim_start_matches(of_address);
        let word = rest.strip_suffix(next).unwrap_or_default();
        if word.is_empty() {
            told.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        }
        let in_url = told.ends_with("://") || told.ends_with('@');
        told.push_str(&shown(fleets, word, in_url && !next.starts_with("://")));
        rest = next;
    }
    told
}

/// A word as it may be read; what only ends a sentence or encloses the word stays.
fn shown(fleets: &[Arc<Fleet>], word: &str, in_url: bool) -> String {
    let ended = word.trim_end_matches(['.', ':', '-', '_']);
    let bare = ended.trim_matches(['[', ']']);
    for core in [ended, bare] {
        let parts = word.split_once(core).filter(|_| !core.is_empty());
        let Some((before, after)) = parts else {
            continue;
        };
        if let Some(name) = name(fleets, core, in_url) {
            return format!("{before}{name}{after}");
        }
    }
    word.to_owned()
}

/// What a word is to be called, if it is an address.
fn name(fleets: &[Arc<Fleet>], word: &str, in_url: bool) -> Option<String> {
    let alias = |is: &dyn Fn(&Instance) -> bool| {
        let mut all = fleets.iter().flat_map(|fleet| fleet.instances());
        all.find(|instance| is(instance))
            .map(|instance| instance.alias.to_string())
    };
    if let Some(alias) = alias(&|instance| instance.address.eq_ignore_ascii_case(word)) {
        return Some(alias);
    }
    let host = word.split_once(':').map_or(word, |(host, _)| host);
    // `localhost` and a plain word such as `worker` say nothing.
    let telling = host.contains(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    let is_host = alias(&|instance| {
        let known = instance.address.rsplit_once(':').map(|(known, _)| known);
        known.is_some_and(|known| known.eq_ignore_ascii_case(host))
    });
    let is_ip = word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok();
    let bracketed = word
        .strip_prefix('[')
        .and_then(|word| word.strip_suffix(']'));
    let is_ip = is_ip || bracketed.is_some_and(|word| word.parse::<IpAddr>().is_ok());
    let has_port = word.split_once(':').is_some_and(|(host, port)| {
        let digits = (2..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
        let named = host.contains(|c: char| c.is_ascii_alphabetic());
        digits && named && (telling || host.eq_ignore_ascii_case("localhost"))
    });
    let lower = host.to_ascii_lowercase();
    let of_cluster = CLUSTER.iter().any(|end| lower.ends_with(end));
    let address = in_url || is_ip || has_port || of_cluster || telling && is_host.is_some();
    address.then(|| ADDRESS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Role;

    fn fleets() -> [Arc<Fleet>; 2] {
        let context = Fleet::build(Role::Context, &["ctx_0:8001", "10.0.0.7:8001"], None);
        let generation = ["gen-1:8001", "gen-1:80", "worker:80", "localhost:80"];
        let generation = Fleet::build(Role::Generation, &generation, None);
        [Arc::new(context), Arc::new(generation)]
    }

    #[track_caller]
    fn masked(said: &str, told: &str) {
        assert_eq!(mask(&fleets(), said), told, "{said}");
    }

    #[test]
    fn instances_are_told_by_their_aliases() {
        for (said, told) in [
            ("cannot reach gen-1:8001", "cannot reach generation-0"),
            ("GEN-1:80: is down", "generation-1: is down"),
            ("(ctx_0:8001, gen-1:80)", "(context-0, generation-1)"),
            ("at 10.0.0.7:8001.", "at context-1."),
            ("http://gen-1:8001/v1/x", "http://generation-0/v1/x"),
            ("\u{e9}: gen-1:8001\u{e9}", "\u{e9}: generation-0\u{e9}"),
            ("['gen-1:8001']", "['generation-0']"),
            ("[gen-1:8001]", "[generation-0]"),
            (
                "worker:80 and localhost:80",
                "generation-2 and generation-3",
            ),
        ] {
            masked(said, told);
        }
    }

    #[test]
    fn no_other_address_is_told() {
        for (said, told) in [
            ("peer 10.0.0.7 is gone", "peer (address) is gone"),
            ("peer 192.168.1.20:5000.", "peer (address)."),
            ("peer 192.168.1.20: refused", "peer (address): refused"),
            (
                "to [fe80::1]:80, [fe80::1] and fe80::1",
                "to (address), (address) and (address)",
            ),
            ("gen-1:9999 gen-1", "(address) (address)"),
            ("my-gen-1:80, ctx-worker:8001", "(address), (address)"),
            ("localhost:8001 ctx-1.pool.svc", "(address) (address)"),
            ("tcp://node7.cluster.local:1/x", "tcp://(address)/x"),
            ("http://user:secret@host/x", "http://(address)@(address)/x"),
        ] {
            masked(said, told);
        }
    }

    #[test]
    fn ordinary_words_stay() {
        for said in [
            "",
            "Requested 40000 tokens: at most 32768 fit (see max_num_tokens).",
            "gen-10 ctx_0x :80 a:80: step 7:30 localhost",
            "the worker is busy, so is localhost",
            "'n' must be 1, 2 or [3, 4]; temperature 0.7; v1.4.0rc2; at 10:30:00",
            "messages[0].content: Field required [type=missing]",
            "\u{4f60}\u{597d}: \u{1f600}",
        ] {
            masked(said, said);
        }
    }

    #[test]
    fn data_is_left_out_and_length_is_bounded() {
        let state = "QUJD".repeat(40);
        masked(
            &format!("bad state '{state}=' for id 7"),
            "bad state '(...)' for id 7",
        );
        let ids: Vec<String> = (0..500).map(|id| id.to_string()).collect();
        let list = format!("prompt_token_ids=[{}] is long", ids.join(", "));
        masked(&list, "(...) is long");
        let plain = list.replace("prompt_token_ids", "ids");
        masked(&plain, "ids=(...) is long");
        for (said, told) in [
            (
                "bad encoded_opaque_state=QUJDREVGRw== here",
                "bad (...) here",
            ),
            (
                "{\"ctx_info_endpoint\": \"tcp://c:1\", \"a\": 1}",
                "{\"(...)\", \"a\": 1}",
            ),
            ("prompt_token_ids: [1, 2, 3], n=2", "(...), n=2"),
            ("ids (1,2,3,4,5,6,7,8,9)!", "ids (...)!"),
            ("ids 1, 2, 3, 4, 5, 6, 7, 8, 9. Why", "ids (...). Why"),
        ] {
            masked(said, told);
        }
        let cut = format!("[{}", ids.join(","));
        masked(&cut, "(...)");
        let long = mask(&[], &"word ".repeat(1000));
        assert_eq!(long.chars().count(), LONGEST + 3);
        assert!(long.ends_with("..."));
    }
}
