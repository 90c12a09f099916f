//! Paths that a worker's server may take for a checked endpoint though they are spelled otherwise.
//!
//! Servers decode escapes, merge slashes, follow dot segments and drop parameters, some of these and
//! in their own order. A request that one of them could bring to an engine must not go around the
//! checks, so every such spelling is found; it is not repaired, because what is checked must be what
//! is forwarded.

use crate::wire::disagg::Endpoint;

/// The endpoint that the target of a request line means in other words. A target with a host in it
/// means what its path ends in.
pub fn means(target: &[u8]) -> Option<Endpoint> {
    let decoded = decoded(target);
    let end = decoded.iter().position(|byte| b"?#".contains(byte));
    let path = decoded.get(..end.unwrap_or(decoded.len()))?;
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| b"/\\".contains(byte)) {
        let name = segment.split(|byte| *byte == b';').next();
        match name.unwrap_or_default().trim_ascii() {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let with_host = !path.starts_with(b"/") && !path.starts_with(b"\\");
    let same = |endpoint: &Endpoint| {
        let own: Vec<_> = endpoint.path().split('/').skip(1).collect();
        let from = if with_host {
            segments.len().saturating_sub(own.len())
        } else {
            0
        };
        let tail = segments.iter().skip(from);
        tail.eq(own
            .iter()
            .map(|name| name.as_bytes())
            .collect::<Vec<_>>()
            .iter())
    };
    [Endpoint::ChatCompletions, Endpoint::Completions]
        .into_iter()
        .find(same)
}

/// Without any percent escape, also where decoding makes a new one.
fn decoded(target: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(target.len());
    for byte in target {
        out.push(*byte);
        while let [.., b'%', high, low] = out[..]
            && let (Some(high), Some(low)) = (digit(high), digit(low))
        {
            out.truncate(out.len() - 3);
            out.push(u8::try_from(high * 16 + low).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_endpoint_is_found() {
        for target in [
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "//v1/chat//completions",
            "/v1/./chat/completions",
            "/x/../v1/chat/y/../completions/.",
            "/../v1/chat/completions",
            "/v1/chat/completions;a=b",
            "/v1;a/chat;b/completions;",
            "/v1/chat/completions;a/?q=1",
            "/v1/ch%61t/completions",
            "/v1/ch%2561t/completions",
            "/v1/ch%25%36%31t/completions",
            "/v1%2fchat%2Fcompletions",
            "/x/%2e%2E/v1/chat/completions",
            "/v1/chat/completions%3Fa",
            "/v1/chat/completions%20",
            "/v1\\chat%5ccompletions",
            "http://host/v1/chat/completions/",
            "foo:bar://host/v1/chat/completions",
        ] {
            let endpoint = means(target.as_bytes());
            assert_eq!(endpoint, Some(Endpoint::ChatCompletions), "{target}");
        }
        assert_eq!(means(b"/v1/completions/"), Some(Endpoint::Completions));
    }

    #[test]
    fn other_paths_are_left_alone() {
        for target in [
            "/",
            "*",
            "",
            "/v1",
            "/v1/chat",
            "/v1/chat/completions/x",
            "/x/v1/chat/completions",
            "/v1/chat/completions/..",
            "/v1/chat-completions",
            "/v1/models?next=/v1/chat/completions",
            "/v1/ch%6/completions",
            "/v1/chat%zz/completions",
        ] {
            assert_eq!(means(target.as_bytes()), None, "{target}");
        }
    }
}
