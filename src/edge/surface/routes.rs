//! What a request asks for, by its method and its path.
//!
//! The one place where paths are compared. A path is compared in its canonical spelling
//! ([`path::canonical`]); one that could be read in another way is refused, with the path that it was
//! meant for, and never served as if it had been written well.

use http::Method;
use pingora::http::RequestHeader;

use crate::{
    config::OwnRoute,
    edge::discovery::StoreRoute,
    http::{
        path::{self, PathError},
        reply::Failure,
    },
    wire::disagg::Endpoint,
};

const MODELS: &str = "/v1/models";
const HEALTH: &str = "/health";
const VERSION: &str = "/version";
const CLUSTER_INFO: &str = "/cluster_info";
const DELEGATIONS: &str = "/v1/kindred/delegations";
const METRICS: &str = "/prometheus/metrics";

/// Every path without a variable part.
const PATHS: [&str; 8] = [
    Endpoint::ChatCompletions.path(),
    Endpoint::Completions.path(),
    MODELS,
    HEALTH,
    VERSION,
    CLUSTER_INFO,
    METRICS,
    DELEGATIONS,
];

/// Methods of the inference endpoints, and of what is only read.
const TO_POST: &str = "OPTIONS, POST";
const TO_READ: &str = "GET, HEAD, OPTIONS";
const ALL_METHODS: &str = "GET, HEAD, OPTIONS, POST";

/// What a request is for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request for the fleets.
    Inference(Endpoint),
    /// Something that the edge tells itself; the method is GET or HEAD.
    Own(Own),
    /// A token for the sub-agents of a session.
    Delegation,
    /// The store of workers' announcements, which is there only where it is hosted.
    Store(StoreRoute),
    /// Which methods there are.
    Options(&'static str),
}

/// What the edge tells of itself and of its fleets.
#[derive(Debug, PartialEq, Eq)]
pub enum Own {
    Models,
    /// One model, by its id.
    Model(String),
    Health,
    Version,
    ClusterInfo,
    Metrics,
}

impl Own {
    /// The route as the configuration knows it.
    pub fn route(&self) -> OwnRoute {
        match self {
            Self::Models | Self::Model(_) => OwnRoute::Models,
            Self::Health => OwnRoute::Health,
            Self::Version => OwnRoute::Version,
            Self::ClusterInfo => OwnRoute::ClusterInfo,
            Self::Metrics => OwnRoute::Metrics,
        }
    }
}

enum Resource {
    Endpoint(Endpoint),
    Own(Own),
    Delegation,
    Store(StoreRoute),
}

/// What a request asks for.
///
/// # Errors
/// 400 for a path that is not in a spelling of one meaning, 404 for one that is not served, 405 for
/// a method that is not served there, 414 for a path that is too long.
pub fn asked(head: &RequestHeader) -> Result<Asked, Failure> {
    let target = head.raw_path();
    if head.method == Method::OPTIONS && target == b"*" {
        return Ok(Asked::Options(ALL_METHODS));
    }
    let resource = resource(head)?;
    let allow = match resource {
        Resource::Endpoint(_) | Resource::Delegation => TO_POST,
        Resource::Own(_) => TO_READ,
        Resource::Store(route) => return Ok(Asked::Store(route)),
    };
    match (resource, &head.method) {
        (_, &Method::OPTIONS) => Ok(Asked::Options(allow)),
        (Resource::Endpoint(endpoint), &Method::POST) => Ok(Asked::Inference(endpoint)),
        (Resource::Delegation, &Method::POST) => Ok(Asked::Delegation),
        (Resource::Own(own), &Method::GET | &Method::HEAD) => Ok(Asked::Own(own)),
        _ => Err(Failure::method_not_allowed(allow)),
    }
}

fn resource(head: &RequestHeader) -> Result<Resource, Failure> {
    let target = head.raw_path();
    let path = path_of(head).and_then(path::canonical);
    let path = path.map_err(|error| refused(target, error))?;
    find(&path).ok_or_else(|| match path::means(target, PATHS) {
        // Some server would decode it once more, or drop a parameter.
        Some(meant) => misspelt("it is not written as it is served", Some(meant)),
        None => Failure::not_found(),
    })
}

/// The path of a request's target, without query and without the host of the absolute form.
fn path_of(head: &RequestHeader) -> Result<&[u8], PathError> {
    let target = head.raw_path();
    if !head.raw_path_is_utf8() {
        return Err(PathError::Unprintable);
    }
    match target.first() {
        Some(b'/' | b'?') | None => {}
        // Pingora has compared the host with the Host field, and took the path from behind it.
        _ if is_absolute(target) => {}
        _ => return Err(PathError::NoPath),
    }
    Ok(head.uri.path().as_bytes())
}

fn is_absolute(target: &[u8]) -> bool {
    [&b"http://"[..], b"https://"].iter().any(|scheme| {
        let begins = target.get(..scheme.len());
        begins.is_some_and(|begins| begins.eq_ignore_ascii_case(scheme))
    })
}

fn find(path: &str) -> Option<Resource> {
    if let Some(endpoint) = Endpoint::of_path(path) {
        return Some(Resource::Endpoint(endpoint));
    }
    if let Some(route) = StoreRoute::of_path(path) {
        return Some(Resource::Store(route));
    }
    if path == DELEGATIONS {
        return Some(Resource::Delegation);
    }
    Some(Resource::Own(match path {
        MODELS => Own::Models,
        HEALTH => Own::Health,
        VERSION => Own::Version,
        CLUSTER_INFO => Own::ClusterInfo,
        METRICS => Own::Metrics,
        other => Own::Model(model_id(other)?),
    }))
}

/// The id of a path below the models. Ids have slashes in them, and clients write those either way.
fn model_id(path: &str) -> Option<String> {
    let id = path.strip_prefix(MODELS)?.strip_prefix('/')?;
    path::decode(id)
}

fn refused(target: &[u8], error: PathError) -> Failure {
    if error == PathError::TooLong {
        return Failure::path_too_long(path::LONGEST);
    }
    misspelt(&error.to_string(), path::means(target, PATHS))
}

fn misspelt(why: &str, meant: Option<&str>) -> Failure {
    let instead = match meant {
        Some(path) => format!("write {path}"),
        None => format!(
            "write a plain one, such as {}",
            Endpoint::ChatCompletions.path()
        ),
    };
    let message = format!("The path cannot be served because {why}; {instead}.");
    Failure::bad_request("invalid_path", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, target: &str) -> Result<Asked, u16> {
        let head = RequestHeader::build(method, target.as_bytes(), None).unwrap();
        asked(&head).map_err(|failure| failure.status)
    }

    #[test]
    fn each_path_has_its_methods() {
        for (path, own) in [
            ("/v1/models", Own::Models),
            ("/health", Own::Health),
            ("/version", Own::Version),
            ("/cluster_info", Own::ClusterInfo),
            ("/prometheus/metrics", Own::Metrics),
        ] {
            assert_eq!(ask("HEAD", path), ask("GET", path));
            assert_eq!(ask("GET", path), Ok(Asked::Own(own)), "{path}");
            assert_eq!(ask("OPTIONS", path), Ok(Asked::Options(TO_READ)), "{path}");
            for method in ["POST", "PUT", "PATCH", "DELETE", "BREW"] {
                assert_eq!(ask(method, path), Err(405), "{method} {path}");
            }
        }
        for endpoint in Endpoint::ALL {
            let path = endpoint.path();
            assert_eq!(ask("POST", path), Ok(Asked::Inference(endpoint)));
            assert_eq!(ask("OPTIONS", path), Ok(Asked::Options(TO_POST)));
            assert_eq!((ask("GET", path), ask("HEAD", path)), (Err(405), Err(405)));
        }
        assert_eq!(ask("OPTIONS", "*"), Ok(Asked::Options(ALL_METHODS)));
        assert_eq!(ask("GET", "*"), Err(400));
    }

    #[test]
    fn ids_of_models_may_have_slashes() {
        for (path, id) in [
            ("/v1/models/gpt", "gpt"),
            ("/v1/models/org/model", "org/model"),
            ("/v1/models/org%2fmodel/", "org/model"),
            ("/v1/models/a%20b%C3%A9", "a b\u{e9}"),
            ("/v1/models/%2e.a", "..a"),
        ] {
            let model = Own::Model(id.to_owned());
            assert_eq!(ask("GET", path), Ok(Asked::Own(model)), "{path}");
        }
        assert_eq!(ask("GET", "/v1/models/"), Ok(Asked::Own(Own::Models)));
        assert_eq!(ask("GET", "/v1/models/%C3"), Err(404));
        assert_eq!(ask("GET", "/v1/modelsx"), Err(404));
        assert_eq!(ask("GET", "/v1/models/../models"), Err(400));
    }
}
