use super::*;
use crate::wire::Role;

const HERE: fn() -> (InstanceId, InstanceId) = || {
    let fleet = Fleet::build(Role::Context, &["a:1", "b:1"], None);
    let ids: Vec<_> = fleet.instances().iter().map(|one| one.id).collect();
    (ids[0], ids[1])
};

fn attempts(max_retries: u32, first: u64, longest: u64) -> Attempts {
    Attempts {
        left: max_retries,
        made: 0,
        tried: Vec::new(),
        replaced_connection: false,
        first_pause: Duration::from_millis(first),
        longest_pause: Duration::from_millis(longest),
    }
}

fn refused(status: u16, retry_after: Option<&str>) -> Option<Cause> {
    let mut headers = HeaderMap::new();
    if let Some(value) = retry_after {
        headers.insert(header::RETRY_AFTER, value.parse().expect("a value"));
    }
    Cause::of_answer(status, &headers)
}

#[test]
fn attempts_run_out_and_pauses_grow_to_a_bound_with_chance() {
    let (here, _) = HERE();
    let mut attempts = attempts(10, 100, 2000);
    let mut full = 100.0_f64;
    while attempts.is_left() {
        let pause = attempts.take((here, here), Cause::Reset, Kind::Context);
        let pause = pause.as_secs_f64() * 1000.0;
        assert!(
            pause >= full / 2.0 - 0.01 && pause <= full,
            "{pause} of {full}"
        );
        full = (2.0 * full).min(2000.0);
    }
    assert_eq!(attempts.made, 10);
}

#[test]
fn pauses_differ() {
    let (here, _) = HERE();
    let mut seen: Vec<_> = (0..20)
        .map(|_| attempts(1, 1000, 2000).take((here, here), Cause::Reset, Kind::Context))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 10, "{seen:?}");
}

#[test]
fn only_where_an_attempt_was_made_before_the_next_one_waits() {
    let (here, there) = HERE();
    let mut attempts = attempts(3, 100, 2000);
    let pause = attempts.take((here, there), Cause::Connect, Kind::Context);
    assert_eq!(pause, Duration::ZERO);
    let pause = attempts.take((there, here), Cause::Connect, Kind::Context);
    assert!(pause > Duration::ZERO, "it was there before");
}

#[test]
fn a_worker_is_left_alone_for_as_long_as_it_asks_within_bounds() {
    let (here, there) = HERE();
    for (retry_after, place, low, high) in [
        (Some("1"), here, 1000, 1000),
        (Some(" 1 "), here, 1000, 1000),
        (Some("3600"), here, 2000, 2000),
        (Some("99999999999999999999"), here, 50, 100),
        (Some("Wed, 21 Oct 2026 07:28:00 GMT"), here, 50, 100),
        (Some("-1"), here, 50, 100),
        (None, here, 50, 100),
        (Some("1"), there, 0, 0),
    ] {
        let cause = refused(429, retry_after).expect("it may be repeated");
        let pause = attempts(1, 100, 2000).take((here, place), cause, Kind::Free);
        let pause = pause.as_millis();
        assert!((low..=high).contains(&pause), "{retry_after:?}: {pause}");
    }
}

#[test]
fn an_id_comes_back_to_a_worker_only_once_it_can_have_noticed_the_reset() {
    let (here, _) = HERE();
    let pause = |cause, kind, longest| attempts(1, 10, longest).take((here, here), cause, kind);
    assert_eq!(pause(Cause::Reset, Kind::HandedOver, 2000), NOTICED);
    let bound = Duration::from_millis(20);
    assert_eq!(pause(Cause::Reset, Kind::HandedOver, 20), bound);
    assert!(pause(Cause::Reset, Kind::Context, 2000) < NOTICED);
}

#[test]
fn without_a_pause_there_is_none() {
    let (here, _) = HERE();
    let pause = attempts(1, 0, 0).take((here, here), Cause::Reset, Kind::HandedOver);
    assert_eq!(pause, Duration::ZERO);
}

#[test]
fn only_transient_statuses_are_repeated() {
    for status in [408, 429, 500, 502, 503, 504, 529] {
        assert!(refused(status, None).is_some(), "{status}");
    }
    for status in [200, 201, 301, 400, 401, 403, 404, 409, 413, 422, 499] {
        assert_eq!(refused(status, None), None, "{status}");
    }
}

#[test]
fn what_is_no_http_or_too_large_is_final() {
    for error in [CallError::Protocol, CallError::TooLarge] {
        assert_eq!(Cause::of_error(error), None);
    }
}

#[test]
fn a_request_moves_only_where_that_can_work() {
    use Place::{Elsewhere, Here, OnlyElsewhere};
    let busy = Cause::Refused {
        status: 503,
        wait: None,
    };
    let broken = Cause::Refused {
        status: 500,
        wait: None,
    };
    for (cause, context, free, handed_over) in [
        (
            Cause::Connect,
            Some(Elsewhere),
            Some(Elsewhere),
            Some(Elsewhere),
        ),
        (busy, Some(Elsewhere), Some(Elsewhere), Some(Elsewhere)),
        (broken, Some(Elsewhere), Some(Elsewhere), Some(Here)),
        (Cause::Reset, Some(Elsewhere), Some(Elsewhere), Some(Here)),
        (Cause::Unheard, Some(Elsewhere), Some(Elsewhere), Some(Here)),
        (Cause::Cut, Some(Elsewhere), None, None),
        (
            Cause::Timeout,
            Some(OnlyElsewhere),
            Some(OnlyElsewhere),
            None,
        ),
        (Cause::Lost, Some(OnlyElsewhere), Some(OnlyElsewhere), None),
    ] {
        let kinds = [Kind::Context, Kind::Free, Kind::HandedOver];
        let places = kinds.map(|kind| cause.place(kind));
        assert_eq!(places, [context, free, handed_over], "{cause:?}");
    }
}

#[test]
fn a_dead_pooled_connection_is_replaced_once_and_later_ones_are_new() {
    let mut attempts = attempts(0, 0, 0);
    assert!(!attempts.wants_fresh());
    assert!(attempts.replace_connection());
    assert!(attempts.wants_fresh());
    assert!(!attempts.replace_connection());
}

#[test]
fn an_instance_is_judged_by_what_its_attempts_met() {
    let said = |status| refused(status, None).and_then(Cause::observation);
    assert_eq!(said(429), Some(Observation::Answered));
    assert_eq!(said(500), Some(Observation::ServerError));
    assert_eq!(Cause::Timeout.observation(), Some(Observation::Timeout));
    // What the instance may never have seen, and what is known of it already.
    assert_eq!(Cause::Unheard.observation(), None);
    assert_eq!(Cause::Lost.observation(), None);
}
