//! One simulated worker as a process of its own.
//!
//! It has nothing of the rest: no configuration, no operator's port. A signal ends it at once, as a
//! worker that crashes or is stopped would.

use std::net::SocketAddr;

use pingora::server::{RunArgs, Server, configuration::ServerConf};

use super::listeners::{Address, BindError, FreePorts};
use crate::simulate::{self, demo::Simulated};

/// A simulated worker whose address is taken.
pub struct SingleWorker {
    pub address: SocketAddr,
    server: Server,
    /// Keeps a port that was picked.
    _ports: FreePorts,
}

impl SingleWorker {
    /// Takes the address; nothing is served before [`SingleWorker::run`].
    ///
    /// # Errors
    /// [`BindError`] when the address cannot be listened on.
    pub fn prepare(worker: Simulated) -> Result<Self, BindError> {
        let mut ports = FreePorts::default();
        let address = Address::take("--listen", &worker.listen, &mut ports)?;
        let conf = ServerConf {
            grace_period_seconds: Some(0),
            graceful_shutdown_timeout_seconds: Some(0),
            ..ServerConf::default()
        };
        let mut server = Server::new_with_opt_and_conf(None, conf);
        server.bootstrap();
        let mut service = simulate::worker::service(worker.config);
        service.threads = Some(1);
        address.listen(&mut service);
        server.add_service(service);
        Ok(Self {
            address: address.socket,
            server,
            _ports: ports,
        })
    }

    /// Serves until a signal ends the process.
    pub fn run(self) {
        self.server.run(RunArgs::default());
    }
}
