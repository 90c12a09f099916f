//! How often an address has failed to say who it is.
//!
//! Decides whether one may try again; an address that may not is refused without a look at what it
//! presents, so it learns nothing. Only wrong credentials count, never good ones and never none. The
//! table is bounded: where it is full, the address that was quiet for longest is forgotten.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use lru::LruCache;
use parking_lot::Mutex;

use crate::config::FailedAttempts;

/// Addresses remembered.
const MOST: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// The failures of every address of late.
pub struct Failures {
    table: Mutex<LruCache<IpAddr, Window>>,
}

#[derive(Clone, Copy)]
struct Window {
    began: Instant,
    count: u32,
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures").finish_non_exhaustive()
    }
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            table: Mutex::new(LruCache::new(MOST)),
        }
    }
}

impl Failures {
    /// How long this address must wait; `None` where it may try.
    pub fn blocked(
        &self,
        address: IpAddr,
        limit: FailedAttempts,
        now: Instant,
    ) -> Option<Duration> {
        let table = self.table.lock();
        let window = table.peek(&place(address))?;
        if window.count < limit.max {
            return None;
        }
        let passed = now.saturating_duration_since(window.began);
        limit.per.checked_sub(passed).filter(|left| !left.is_zero())
    }

    /// Notes a failure.
    pub fn note(&self, address: IpAddr, limit: FailedAttempts, now: Instant) {
        let mut table = self.table.lock();
        let first = Window {
            began: now,
            count: 0,
        };
        let window = table.get_or_insert_mut(place(address), || first);
        if now.saturating_duration_since(window.began) >= limit.per {
            *window = first;
        }
        window.count = window.count.saturating_add(1);
    }
}

/// Whose failures count together: whoever has one IPv6 address has the 2^64 beside it as well.
fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: FailedAttempts = FailedAttempts {
        max: 2,
        per: Duration::from_secs(60),
    };

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_waits_until_its_time_is_over_and_others_do_not() {
        let failures = Failures::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let one = ip("192.0.2.1");
        failures.note(one, LIMIT, at(0));
        assert_eq!(failures.blocked(one, LIMIT, at(1)), None);
        failures.note(one, LIMIT, at(10));
        let wait = Some(Duration::from_secs(50));
        assert_eq!(failures.blocked(one, LIMIT, at(10)), wait);
        assert_eq!(
            failures.blocked(ip("::ffff:192.0.2.1"), LIMIT, at(10)),
            wait
        );
        assert_eq!(failures.blocked(ip("192.0.2.2"), LIMIT, at(10)), None);
        assert_eq!(failures.blocked(one, LIMIT, at(60)), None);
        failures.note(one, LIMIT, at(60));
        assert_eq!(failures.blocked(one, LIMIT, at(61)), None, "a new minute");
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let failures = Failures::default();
        let now = Instant::now();
        failures.note(ip("2001:db8::1"), LIMIT, now);
        failures.note(ip("2001:db8::ffff:1"), LIMIT, now);
        assert!(failures.blocked(ip("2001:db8::2"), LIMIT, now).is_some());
        assert!(
            failures
                .blocked(ip("2001:db8:0:1::2"), LIMIT, now)
                .is_none()
        );
    }

    #[test]
    fn the_table_is_bounded() {
        let failures = Failures::default();
        let now = Instant::now();
        for number in 0..u32::try_from(MOST.get()).expect("small") + 10 {
            failures.note(std::net::Ipv4Addr::from(number).into(), LIMIT, now);
        }
        assert_eq!(failures.table.lock().len(), MOST.get());
    }
}
