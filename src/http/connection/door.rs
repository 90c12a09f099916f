//! How many connections there are at once, in all and from one address.
//!
//! Decides whether a connection is taken, and gives its place back exactly once: when the place is
//! dropped. It must never hold more than one entry for each open connection, and knows nothing of what
//! is said on one.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::{
    config::{Compatibility, Config},
    telemetry::{labels::ConnectionRefusal, metrics},
};

/// What of the configuration concerns connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// `limits.max_connections`.
    pub in_all: usize,
    /// `limits.max_connections_per_address`.
    pub by_address: Option<usize>,
    /// `timeouts.read_header`.
    pub read_header: Duration,
    /// The shape of errors.
    pub compatibility: Compatibility,
}

/// How many connections the operator's port takes: few, since a metrics scraper, a kubelet and a person
/// use it, and enough for all of them beside some that hang.
const OF_OPERATORS: usize = 64;

impl Bounds {
    /// The bounds of the clients' port.
    pub fn of_clients(config: &Config) -> Self {
        Self {
            in_all: config.limits.max_connections,
            by_address: config.limits.max_connections_per_address,
            read_header: config.timeouts.read_header,
            compatibility: config.compatibility,
        }
    }

    /// The bounds of a worker filter's port: all that comes there comes from few edges.
    pub fn of_edges(config: &Config) -> Self {
        Self {
            by_address: None,
            compatibility: Compatibility::OpenAi,
            ..Self::of_clients(config)
        }
    }
}

/// Lets connections in.
#[derive(Debug)]
pub struct Door {
    /// Whether it is the operator's, whose connections are not measured with those of clients.
    of_operator: bool,
    bounds: ArcSwap<Bounds>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    door: Arc<Door>,
    address: Option<IpAddr>,
}

impl Door {
    /// A door with nobody inside.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Self::build(bounds, false)
    }

    /// The door of the operator's port.
    pub fn of_operator(config: &Config) -> Arc<Self> {
        let bounds = Bounds {
            in_all: OF_OPERATORS,
            ..Bounds::of_edges(config)
        };
        Self::build(bounds, true)
    }

    fn build(bounds: Bounds, of_operator: bool) -> Arc<Self> {
        Arc::new(Self {
            of_operator,
            bounds: ArcSwap::from_pointee(bounds),
            inside: Mutex::default(),
        })
    }

    /// The bounds for connections that begin now.
    pub fn bounds(&self) -> Bounds {
        **self.bounds.load()
    }

    /// Takes other bounds; who is inside stays.
    pub fn reload(&self, bounds: Bounds) {
        self.bounds.store(Arc::new(bounds));
    }

    /// A place for a connection from `peer`, if there is one.
    pub fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<Place> {
        let bounds = self.bounds();
        let address = peer.map(network);
        let mut inside = self.inside.lock();
        let refusal = if inside.all >= bounds.in_all {
            let operators = self.of_operator.then_some(ConnectionRefusal::Operator);
            operators.or(Some(ConnectionRefusal::All))
        } else {
            let known = address.and_then(|address| inside.by_address.get(&address));
            let most = bounds.by_address.unwrap_or(usize::MAX);
            (known.is_some_and(|known| *known >= most)).then_some(ConnectionRefusal::Address)
        };
        if let Some(refusal) = refusal {
            metrics().connections_refused.inc(refusal);
            return None;
        }
        inside.all += 1;
        if let Some(address) = address {
            *inside.by_address.entry(address).or_default() += 1;
        }
        if !self.of_operator {
            metrics().connections.inc();
        }
        let door = self.clone();
        Some(Place { door, address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.door.inside.lock();
        inside.all = inside.all.saturating_sub(1);
        if let Some(address) = self.address
            && let Some(known) = inside.by_address.get_mut(&address)
        {
            *known = known.saturating_sub(1);
            if *known == 0 {
                inside.by_address.remove(&address);
            }
        }
        if !self.door.of_operator {
            metrics().connections.dec();
        }
    }
}

/// What counts as one address: one of IPv4, or 64 bits of IPv6, of which anybody may have all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(network.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(in_all: usize, by_address: Option<usize>) -> Arc<Door> {
        Door::new(Bounds {
            in_all,
            by_address,
            read_header: Duration::from_secs(1),
            compatibility: Compatibility::OpenAi,
        })
    }

    #[test]
    fn a_place_is_given_back_once() {
        let door = door(2, None);
        let one = door.enter(None).unwrap();
        let _two = door.enter("10.0.0.1".parse().ok()).unwrap();
        assert!(door.enter(None).is_none());
        drop(one);
        assert!(door.enter(None).is_some());
        assert!(door.enter(None).is_some(), "the one before has left");
    }

    #[test]
    fn nothing_is_remembered_of_an_address_that_left() {
        let door = door(9, Some(1));
        let place = door.enter("10.0.0.1".parse().ok());
        assert!(door.enter("::ffff:10.0.0.1".parse().ok()).is_none());
        drop(place);
        assert!(door.inside.lock().by_address.is_empty());
        let _one = door.enter("2001:db8::1".parse().ok()).unwrap();
        assert!(door.enter("2001:db8::ffff:1".parse().ok()).is_none());
        assert!(door.enter("2001:db8:0:1::1".parse().ok()).is_some());
    }
}
