//! Error answers as upstream's edge gives them (specification section 3.4).
//!
//! Decides status and body by what went wrong, for clients that were written against upstream. A
//! worker's own refusal keeps its status, as in upstream's newer line; the older one makes it a 500
//! that names the worker's address, which no client is told here. What upstream has no answer for keeps
//! its status and becomes a `detail`.

use serde_json::{Value, json};

use super::Failure;
use crate::config::Compatibility;

/// What begins upstream's generic message.
const INTERNAL: &str = "Internal server error";

impl Failure {
    /// The status and the body of the answer, on one line.
    pub fn shaped(&self, whose: Compatibility) -> (u16, String) {
        match whose {
            Compatibility::OpenAi => (self.status, self.body()),
            Compatibility::Trtllm => {
                let (status, body) = self.as_upstream();
                (status, body.to_string())
            }
        }
    }

    fn as_upstream(&self) -> (u16, Value) {
        let message = self.message.as_str();
        let detail = |text: &str| json!({ "detail": text });
        let internal = |text: &str| (500, detail(&format!("{INTERNAL} {text}")));
        match (self.status, self.code) {
            (400, "invalid_body") if self.is_of_several_prompts() => internal(
                "Disaggregated server currently only supports single string prompt or list of \
                 integers in request",
            ),
            (400, "invalid_body" | "invalid_json") => (400, json!({ "error": message })),
            (404, "not_found") => (404, detail("Not Found")),
            (405, _) => (405, detail("Method Not Allowed")),
            (503, "no_instance") => internal("Cluster is not ready"),
            (status, "worker_refused") => (status, detail(message)),
            (500 | 502 | 504, _) => internal(message),
            (status, _) => (status, detail(message)),
        }
    }
}

impl Failure {
    /// Upstream's models accept several prompts, and its edge does not.
    fn is_of_several_prompts(&self) -> bool {
        self.param.as_deref() == Some("prompt") && self.message.contains("several prompts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::labels::Outcome;

    fn shaped(failure: &Failure) -> (u16, Value) {
        let (status, body) = failure.shaped(Compatibility::Trtllm);
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    #[test]
    fn each_failure_has_upstreams_shape() {
        let upstream = |what: &str| json!({"detail": format!("Internal server error {what}")});
        let prompt = Failure::bad_request("invalid_body", "'prompt' holds several prompts.");
        let gone = Failure::bad_gateway("worker_unreachable", Outcome::Unreachable, "gone");
        for (failure, status, body) in [
            (
                Failure::bad_request("invalid_body", "none").param(Some("prompt".to_owned())),
                400,
                json!({"error": "none"}),
            ),
            (
                Failure::bad_request("invalid_body", "no"),
                400,
                json!({"error": "no"}),
            ),
            (
                prompt.param(Some("prompt".to_owned())),
                500,
                upstream(
                    "Disaggregated server currently only supports single string prompt or list of \
                     integers in request",
                ),
            ),
            (
                Failure::bad_request("chat_template_not_allowed", "no"),
                400,
                json!({"detail": "no"}),
            ),
            (Failure::not_found(), 404, json!({"detail": "Not Found"})),
            (
                Failure::unavailable("no_instance", Outcome::NoInstance, "none"),
                500,
                upstream("Cluster is not ready"),
            ),
            (
                Failure::from_worker(422, "not so"),
                422,
                json!({"detail": "not so"}),
            ),
            (
                Failure::from_worker(500, "not so"),
                500,
                json!({"detail": "not so"}),
            ),
            (gone, 500, upstream("gone")),
            (Failure::gateway_timeout("late"), 500, upstream("late")),
            (Failure::internal("oh"), 500, upstream("oh")),
            (
                Failure::unavailable("no_capacity", Outcome::Overloaded, "full"),
                503,
                json!({"detail": "full"}),
            ),
            (
                Failure::too_many_requests("client_limit", "enough"),
                429,
                json!({"detail": "enough"}),
            ),
        ] {
            assert_eq!(shaped(&failure), (status, body), "{failure:?}");
            let own = (failure.status, failure.body());
            assert_eq!(failure.shaped(Compatibility::OpenAi), own);
        }
    }
}
