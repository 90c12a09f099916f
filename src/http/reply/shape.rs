//! Error answers as upstream's edge gives them (specification section 3.4).
//!
//! Decides status and body by what went wrong, for clients that were written against upstream. A
//! worker's own refusal keeps its status, as in upstream's newer line; the older one makes it a 500
//! that names the worker's address, which no client is told here. What upstream has no answer for keeps
//! its status and becomes a `detail`.

use serde_json::{Value, json};

use super::Failure;
use crate::{config::Compatibility, wire::conversation};

/// What begins upstream's generic message.
const INTERNAL: &str = "Internal server error";

/// What upstream says of prompts that cannot be split over two legs, word for word.
const ONE_PROMPT: &str = "Disaggregated server currently only supports single string prompt or list of \
                          integers in request";

/// Codes of a 400 that says what is wrong with the body.
const ABOUT_THE_BODY: [&str; 5] = [
    "invalid_body",
    "invalid_content_encoding",
    "invalid_framing",
    "invalid_json",
    "stream_options_without_stream",
];

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
            // A worker's refusal comes first: its 404 or 405 is not about the edge's own paths.
            (status, "worker_refused") => (status, detail(message)),
            (400, "unsupported_prompt") => internal(ONE_PROMPT),
            (400, _) if self.is_about_the_body() => (400, json!({ "error": message })),
            (404, "not_found") => (404, detail("Not Found")),
            (405, _) => (405, detail("Method Not Allowed")),
            (503, "no_instance") => internal("Cluster is not ready"),
            (500 | 502 | 504, _) => internal(message),
            (status, _) => (status, detail(message)),
        }
    }

    /// Whether upstream's validator would have refused this.
    fn is_about_the_body(&self) -> bool {
        let in_body = |param: &str| param.starts_with(conversation::PARAMS);
        match self.code {
            "invalid_session_id" => self.param.as_deref().is_some_and(in_body),
            code => ABOUT_THE_BODY.contains(&code),
        }
    }
}
