//! `timeouts`: every deadline, and the pauses between attempts.

use std::time::Duration;

use crate::config::{
    Timeouts,
    raw::{self, Field, Section},
    report::Report,
};

const LEAST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_secs(7 * 24 * 3600);
/// A request that pauses for longer only takes up room.
const MOST_PAUSE: Duration = Duration::from_secs(60);

/// `timeouts`.
pub(crate) fn timeouts(field: Option<Field>, report: &mut Report) -> Timeouts {
    let raw = field
        .map(|field| raw::TimeoutsSection::closed(field, report))
        .unwrap_or_default();
    let mut duration = |field: &Option<Field>, least, default| {
        let field = field.as_ref();
        field
            .and_then(|field| field.duration(report, least..=MOST))
            .unwrap_or(default)
    };
    let seconds = Duration::from_secs;
    let silence = duration(&raw.silence, LEAST, seconds(180));
    let timeouts = Timeouts {
        connect: duration(&raw.connect, LEAST, seconds(2)),
        read_header: duration(&raw.read_header, LEAST, seconds(10)),
        read_body: duration(&raw.read_body, LEAST, seconds(60)),
        queue: duration(&raw.queue, LEAST, seconds(30)),
        context: duration(&raw.context, LEAST, seconds(180)),
        first_byte: duration(&raw.first_byte, LEAST, silence),
        silence,
        answer: duration(&raw.answer, LEAST, seconds(600)),
        write: duration(&raw.write, LEAST, seconds(30)),
        idle_upstream: duration(&raw.idle_upstream, LEAST, seconds(4)),
        retry_pause: Duration::from_millis(100),
        retry_pause_max: seconds(2),
        drain: duration(&raw.drain, Duration::ZERO, seconds(30)),
    };
    let slow_to_close = timeouts.idle_upstream.as_secs() >= 5;
    if let Some(field) = raw.idle_upstream.as_ref().filter(|_| slow_to_close) {
        report.warn(
            &field.at,
            "is not below the 5s after which a worker closes an idle connection; requests may meet \
             a closed one",
        );
    }
    with_pauses(timeouts, &raw, report)
}

/// `retry_pause` and `retry_pause_max`, of which either may be given alone.
fn with_pauses(timeouts: Timeouts, raw: &raw::TimeoutsSection, report: &mut Report) -> Timeouts {
    let mut pause = |field: &Option<Field>| {
        let field = field.as_ref()?;
        field.duration(report, Duration::ZERO..=MOST_PAUSE)
    };
    let (first, longest) = (pause(&raw.retry_pause), pause(&raw.retry_pause_max));
    if let (Some(first), Some(longest), Some(field)) = (first, longest, &raw.retry_pause_max)
        && longest < first
    {
        report.error(
            &field.at,
            "is shorter than timeouts.retry_pause, the first of the pauses; raise it or lower that one",
        );
    }
    let retry_pause = first.unwrap_or_else(|| timeouts.retry_pause.min(longest.unwrap_or(MOST)));
    Timeouts {
        retry_pause,
        retry_pause_max: longest.unwrap_or(timeouts.retry_pause_max).max(retry_pause),
        ..timeouts
    }
}
