//! Takes the addresses of the configuration before anything is served.
//!
//! A port of 0 becomes a free one: a socket that is bound but never listens holds it until Pingora
//! has bound the same port beside it. Any other port is tried once, so that an address in use is a
//! sentence at start-up and not a crash later.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
};

use pingora::{
    listeners::{TcpSocketOptions, tls::TlsSettings},
    services::listening::Service,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Config;

/// An address of the configuration that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot listen on {address}: {reason}")]
pub struct BindError {
    pub key: String,
    pub address: String,
    pub reason: String,
}

/// Free ports that are held for listeners to come.
#[derive(Debug, Default)]
pub struct FreePorts {
    held: HashMap<u16, Socket>,
}

impl FreePorts {
    /// Picks a free port on the loopback address and holds it.
    ///
    /// # Errors
    /// When there is none.
    pub fn pick(&mut self) -> io::Result<SocketAddr> {
        self.pick_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    fn pick_at(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let socket = bound(address, true)?;
        let picked = socket
            .local_addr()?
            .as_socket()
            .ok_or_else(|| io::Error::other("not an internet address"))?;
        self.held.insert(picked.port(), socket);
        Ok(picked)
    }
}

fn bound(address: SocketAddr, beside_others: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if beside_others {
        socket.set_reuse_port(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// One address, ready for Pingora.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    pub socket: SocketAddr,
    /// Whether the port is held by [`FreePorts`].
    held: bool,
}

impl Address {
    /// Takes one address; `key` is where it was given.
    pub(super) fn take(key: &str, text: &str, ports: &mut FreePorts) -> Result<Self, BindError> {
        Self::try_take(text, ports).map_err(|reason| BindError {
            key: key.to_owned(),
            address: text.to_owned(),
            reason: reason.to_string(),
        })
    }

    fn try_take(text: &str, ports: &mut FreePorts) -> io::Result<Self> {
        let wanted = text
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the host name has no address"))?;
        if wanted.port() == 0 {
            return Ok(Self {
                socket: ports.pick_at(wanted)?,
                held: true,
            });
        }
        if ports.held.contains_key(&wanted.port()) {
            return Ok(Self {
                socket: wanted,
                held: true,
            });
        }
        bound(wanted, false)?.listen(1)?;
        Ok(Self {
            socket: wanted,
            held: false,
        })
    }

    /// Lets a service listen here.
    pub fn listen<A>(&self, service: &mut Service<A>) {
        service.add_tcp_with_settings(&self.socket.to_string(), self.options());
    }

    /// Lets a service listen here with TLS.
    pub fn listen_tls<A>(&self, service: &mut Service<A>, settings: TlsSettings) {
        let options = Some(self.options());
        service.add_tls_with_settings(&self.socket.to_string(), options, settings);
    }

    fn options(&self) -> TcpSocketOptions {
        let mut options = TcpSocketOptions::default();
        options.so_reuseport = self.held.then_some(true);
        options
    }
}

/// All addresses of a configuration.
#[derive(Debug)]
pub struct Listeners {
    pub edge: Option<Address>,
    pub filters: Vec<Address>,
    pub admin: Option<Address>,
    pub simulated: Vec<Address>,
    /// Keeps the ports that were picked for as long as the listeners are meant.
    _ports: FreePorts,
}

impl Listeners {
    /// Every address that is listened on.
    pub fn sockets(&self) -> Vec<SocketAddr> {
        let some = self.edge.iter().chain(&self.filters).chain(&self.admin);
        let all = some.chain(&self.simulated);
        all.map(|address| address.socket).collect()
    }

    /// Takes every address and writes free ports that were picked back into `config`.
    ///
    /// # Errors
    /// [`BindError`] naming the key of the address that cannot be had.
    pub fn take(
        config: &mut Config,
        simulated: &[String],
        mut ports: FreePorts,
    ) -> Result<Self, BindError> {
        let mut edge = None;
        if let Some(settings) = &mut config.edge {
            let text = format!("{}:{}", settings.hostname, settings.port);
            let address = Address::take("hostname, port", &text, &mut ports)?;
            settings.port = address.socket.port();
            edge = Some(address);
        }
        let mut filters = Vec::with_capacity(config.worker_filters.len());
        for filter in &mut config.worker_filters {
            let key = format!("worker_filters[{}].listen", filter.name);
            let address = Address::take(&key, &filter.listen, &mut ports)?;
            filter.listen = address.socket.to_string();
            filters.push(address);
        }
        let mut admin = None;
        if let Some(settings) = &mut config.admin {
            let address = Address::take("admin.listen", &settings.listen.to_string(), &mut ports)?;
            settings.listen = address.socket;
            admin = Some(address);
        }
        let simulated = simulated
            .iter()
            .map(|text| Address::take("simulated worker", text, &mut ports))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            edge,
            filters,
            admin,
            simulated,
            _ports: ports,
        })
    }
}
