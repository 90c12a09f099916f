//! Paths that a worker's server may take for a checked endpoint though they are spelled otherwise.
//!
//! Servers decode escapes, merge slashes, follow dot segments and drop parameters, some of these and
//! in their own order. A request that one of them could bring to an engine must not go around the
//! checks, so every such spelling is found; it is not repaired, because what is checked must be what
//! is forwarded.

use crate::{http::path, wire::disagg::Endpoint};

/// The endpoint that the target of a request line means in other words. A target with a host in it
/// means what its path ends in.
pub fn means(target: &[u8]) -> Option<Endpoint> {
    path::means(target, Endpoint::ALL.map(Endpoint::path)).and_then(Endpoint::of_path)
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
