//! What the end of a leg says of its instance.
//!
//! Decides what is held against whom: never the client's doing, nor an old pooled connection that died
//! unseen, and nothing against an instance whose leg did not decide.

use crate::{fleet::Observation, http::upstream::CallError, telemetry::labels::Outcome};

/// What a call without an answer says.
pub fn of_call(error: CallError) -> Option<Observation> {
    match error {
        CallError::Connect | CallError::Tls | CallError::Unresolved => Some(Observation::Connect),
        CallError::Reset | CallError::Cut => Some(Observation::Reset),
        CallError::Timeout => Some(Observation::Timeout),
        CallError::Protocol => Some(Observation::ServerError),
        CallError::TooLarge => Some(Observation::Answered),
        CallError::Unheard => None,
    }
}

/// What the outcome of a request says of the instance whose leg decided it.
pub fn of_outcome(outcome: Outcome) -> Option<Observation> {
    match outcome {
        Outcome::Ok | Outcome::UpstreamRefused => Some(Observation::Answered),
        Outcome::UpstreamError => Some(Observation::ServerError),
        Outcome::Unreachable | Outcome::StreamBroken => Some(Observation::Reset),
        Outcome::Timeout => Some(Observation::Timeout),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_h21_what_the_client_does_is_held_against_nobody() {
        for outcome in [
            Outcome::ClientCancel,
            Outcome::ClientError,
            Outcome::TooLarge,
            Outcome::Overloaded,
        ] {
            assert_eq!(of_outcome(outcome), None, "{outcome}");
        }
        let refused = of_outcome(Outcome::UpstreamRefused);
        assert_eq!(refused, Some(Observation::Answered));
        assert_eq!(of_call(CallError::Unheard), None);
        assert_eq!(Observation::of_status(429), Observation::Answered);
    }
}
