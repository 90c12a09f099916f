//! The attempts of one request's context leg, one after the other.
//!
//! Decides by the policy of `retry` whether another one follows, and counts it once it is known where
//! it is made.

use std::time::Duration;

use crate::{
    edge::{
        live::Live,
        retry::{Attempts, Cause, Failed, Kind, Place},
    },
    fleet::{Fleet, InstanceId},
    http::reply::Failure,
    routing::{Exclusion, Pick},
    telemetry::{self, labels::FleetLabel},
};

/// The attempts of one request's context leg.
pub struct Series {
    attempts: Attempts,
    /// The last one, once it has failed in a way that another may be made after.
    last: Option<Last>,
}

struct Last {
    instance: InstanceId,
    cause: Cause,
    failure: Failure,
    /// Whether one more was made after it.
    repeated: bool,
}

impl Series {
    pub fn new(live: &Live) -> Self {
        Self {
            attempts: Attempts::new(live),
            last: None,
        }
    }

    /// Whether an attempt at `instance` may be given up for one at another instance.
    pub fn could_move(&self, fleet: &Fleet, instance: InstanceId) -> bool {
        self.attempts.could_move(fleet, instance)
    }

    /// Whether the next attempt must not go out on a pooled connection.
    pub fn wants_fresh(&self) -> bool {
        self.attempts.wants_fresh()
    }

    /// What the next choice leaves out.
    pub fn exclusion(&self) -> Option<Exclusion> {
        let last = self.last.as_ref()?;
        Some(self.attempts.exclusion(last.cause, last.instance))
    }

    /// Takes note of an attempt that failed; there may be another one to make when this is good.
    ///
    /// # Errors
    /// What the client is to be told, when there is none.
    pub fn go_on(&mut self, pick: &Pick, failed: Failed) -> Result<(), Failure> {
        let Failed { failure, cause } = failed;
        let Some(cause) = cause else {
            return Err(failure);
        };
        if cause == Cause::Unheard && self.attempts.replace_connection() {
            return Ok(());
        }
        if !self.attempts.is_left() {
            return Err(failure);
        }
        self.last = Some(Last {
            instance: pick.load.instance().id,
            cause,
            failure,
            repeated: false,
        });
        Ok(())
    }

    /// An instance was chosen. The answer is how long to wait before the attempt.
    ///
    /// # Errors
    /// What the client is to be told where the attempt before may not be repeated there.
    pub fn placed(&mut self, instance: InstanceId) -> Result<Duration, Failure> {
        let Some(last) = self.last.as_mut().filter(|last| !last.repeated) else {
            return Ok(Duration::ZERO);
        };
        let stays = last.instance == instance;
        match last.cause.place(Kind::Context) {
            Some(Place::OnlyElsewhere) if stays => return Err(last.failure.clone()),
            None => return Err(last.failure.clone()),
            _ => {}
        }
        last.repeated = true;
        let reason = (FleetLabel::Context, last.cause.reason());
        telemetry::metrics().leg_retries.inc(reason);
        let way = (last.instance, instance);
        Ok(self.attempts.take(way, last.cause, Kind::Context))
    }
}
