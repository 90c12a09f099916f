//! Places: how much a client and a fleet are given at once (the design's rule 6).
//!
//! Decides what a request is told that gets none. Whoever has spent a prefill already goes first and
//! is refused only when its time is over, since the prefill would be lost.

use std::time::Instant;

use pingora::proxy::Session;
use tokio::time::timeout;

use super::{client::Client, destination::Destination, live::Live};
use crate::{
    fleet::queue::Place,
    gateway::Admission,
    http::reply::Failure,
    telemetry::{
        self,
        labels::{ClientLimit, FleetLabel, Outcome, QueueRefusal},
    },
};

/// Takes one of the client's own places.
///
/// # Errors
/// 429 where it has as many requests in flight as it may.
pub fn of_client(admission: &Admission) -> Result<Option<Place>, Failure> {
    let Some(places) = &admission.client.places else {
        return Ok(None);
    };
    let turn = places.enter(false).map_err(|_| {
        let most = places.limits().places.unwrap_or_default();
        let refusals = &telemetry::metrics().legs.queue_refusals;
        refusals.inc((FleetLabel::None, QueueRefusal::Client));
        telemetry::metrics()
            .limit_refusals
            .inc(ClientLimit::InFlight);
        Failure::too_many_requests(
            "client_limit",
            format!(
                "This client has {most} requests in flight, as many as it may; retry when one has \
                 ended."
            ),
        )
        .header("x-ratelimit-limit-in-flight", most.to_string())
        .header("x-ratelimit-remaining-in-flight", "0")
    })?;
    Ok(turn.now())
}

/// Takes a place in a fleet, when one comes.
///
/// # Errors
/// 503 where too many wait or none came in time, or the client has left.
pub async fn in_fleet(
    session: &mut Session,
    client: &mut Client,
    live: &Live,
    destination: &Destination,
    spent: bool,
) -> Result<Place, Failure> {
    let metrics = &telemetry::metrics().legs;
    let fleet = destination.label();
    let refused = |reason, message: &str| {
        metrics.queue_refusals.inc((fleet, reason));
        Failure::unavailable("no_capacity", Outcome::Overloaded, message)
    };
    let turn = destination.queue.enter(spent).map_err(|_| {
        let message = "Every place is taken and too many requests wait; retry shortly.";
        refused(QueueRefusal::Full, message)
    })?;
    let waits = turn.waits();
    let began = Instant::now();
    let place = timeout(live.config.timeouts.queue, turn.place());
    let place = client.attend(session, place).await?;
    let place = place.map_err(|_| {
        let limit = humantime::format_duration(live.config.timeouts.queue);
        let message = format!("No place came free within {limit}; retry shortly.");
        refused(QueueRefusal::Deadline, &message)
    })?;
    if waits {
        metrics.queue_wait.observe(fleet, began.elapsed());
    }
    Ok(place)
}
