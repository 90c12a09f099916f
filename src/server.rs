//! Puts the rooms on sockets: one Pingora server with the edge, the worker filters, the operator's
//! port and, in the demo, the simulated workers.
//!
//! It decides which listeners there are (`listeners`), how a new configuration replaces the running
//! one (`reload`) and how the process ends (`drain`). It must never look at a request.

pub mod drain;
pub mod listeners;
pub mod reload;
pub mod single;
pub mod tls;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use pingora::{
    apps::HttpServerOptions,
    connectors::ConnectorOptions,
    server::{RunArgs, Server, configuration::ServerConf},
    services::{background::background_service, listening::Service},
};

use crate::{
    admin::{Admin, Readiness},
    config::{CLIENT_KEEP_ALIVE, Config},
    edge::{self, Edge, EdgeProxy, TokenizerError},
    http::connection::{self, Bounds, Door},
    simulate::{self, demo::Simulated},
    telemetry::{self, log::Log},
    worker::{Filter, FilterProxy},
};
use drain::{Drain, Never};
use listeners::{Address, BindError, FreePorts, Listeners};
use reload::Reloader;
use tls::{Loaded, Shown, Tls, TlsError};

/// Connections kept open to workers, over all instances.
const UPSTREAM_POOL: usize = 1024;

/// Tries that Pingora allows a request at most. It takes the number once for good, so it is out of
/// the way here: the edge decides every retry itself, by the configuration that the request began with.
const MOST_TRIES: usize = 1 << 16;

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Pingora(#[from] pingora::BError),
}

/// Everything one process runs.
pub struct Running {
    /// The addresses that are listened on, free ports resolved.
    pub listeners: Listeners,
    /// The configuration as it runs.
    pub config: Arc<Config>,
    server: Server,
    /// The operator's port, which stays open while the rest drains.
    admin: Option<Server>,
    drain: Drain,
}

impl Running {
    /// Takes the addresses and builds every service; nothing is served before [`Running::run`].
    ///
    /// # Errors
    /// [`StartError`] when an address cannot be listened on or a file cannot be used.
    pub fn prepare(
        mut config: Config,
        simulated: Vec<Simulated>,
        ports: FreePorts,
        log: Log,
    ) -> Result<Self, StartError> {
        let addresses: Vec<_> = simulated
            .iter()
            .map(|worker| worker.listen.clone())
            .collect();
        let listeners = Listeners::take(&mut config, &addresses, ports)?;
        let config = Arc::new(config);
        let loaded = Loaded::read(&config)?;
        for warning in loaded.warnings() {
            tracing::warn!("{warning}");
        }
        let tls = Tls::new(loaded);
        let mut server = Server::new_with_opt_and_conf(None, server_conf(&config));
        server.bootstrap();

        let proxies = Proxies::new(&config, &server, &tls)?;
        proxies.listen(&mut server, &listeners, &tls)?;
        let controls = simulated.iter().map(|worker| {
            let config = &worker.config;
            (config.name.clone(), config.control.clone())
        });
        let controls = controls.collect();
        for (worker, address) in simulated.into_iter().zip(&listeners.simulated) {
            let mut service = simulate::worker::service(worker.config);
            service.threads = Some(1);
            address.listen(&mut service);
            server.add_service(service);
        }
        let Proxies {
            edge,
            filters,
            clients,
            edges,
        } = proxies;
        let readiness = Readiness::default();
        let running = Arc::new(ArcSwap::new(config.clone()));
        let served = Admin {
            edge: edge.clone(),
            filters: filters.clone(),
            readiness: readiness.clone(),
            running: running.clone(),
            simulated: controls,
        };
        let drain = config.timeouts.drain;
        let drain = Drain::new(drain, edge.clone(), filters.clone(), readiness);
        let admin = listeners.admin;
        let admin = admin.map(|address| {
            let door = Door::of_operator(&config);
            admin_server(served, &door, &address, tls.admin.as_ref())
        });
        let admin = admin.transpose()?;
        let reload = Reloader::new(running, edge, filters, tls, log).with_doors(clients, edges);
        server.add_service(background_service("reload", reload));
        telemetry::metrics().config_applied();
        Ok(Self {
            admin,
            listeners,
            config,
            server,
            drain,
        })
    }

    /// Serves until a signal ends the process.
    pub fn run(self) {
        if let Some(admin) = self.admin {
            std::thread::spawn(|| {
                admin.run(RunArgs {
                    shutdown_signal: Box::new(Never),
                });
            });
        }
        self.server.run(RunArgs {
            shutdown_signal: Box::new(self.drain),
        });
    }
}

/// What a configuration lets this process proxy.
struct Proxies {
    edge: Option<Arc<Edge>>,
    filters: Vec<Arc<Filter>>,
    /// Where clients come in.
    clients: Arc<Door>,
    /// Where edges come in, at all filters of this process together.
    edges: Arc<Door>,
}

impl Proxies {
    fn new(config: &Arc<Config>, server: &Server, tls: &Tls) -> Result<Self, TokenizerError> {
        let options = || connector_options(server);
        let filters = config.worker_filters.iter().zip(&tls.filters);
        Ok(Self {
            edge: Edge::new(config, options(), tls.workers.clone())?.map(Arc::new),
            filters: filters
                .map(|(filter, (_, tls))| {
                    Arc::new(Filter::new(config, filter, options(), tls.clone()))
                })
                .collect(),
            clients: Door::new(Bounds::of_clients(config)),
            edges: Door::new(Bounds::of_edges(config)),
        })
    }

    /// Adds a service for each, on the address that was taken for it.
    fn listen(&self, server: &mut Server, listeners: &Listeners, tls: &Tls) -> pingora::Result<()> {
        if let (Some(edge), Some(address)) = (&self.edge, &listeners.edge) {
            let idle = edge.client_keep_alive();
            let app = proxy(server, EdgeProxy(edge.clone()), idle);
            let mut service = connection::behind(&self.clients, "edge", app);
            listen(&mut service, address, tls.edge.as_ref())?;
            server.add_service(service);
            let options = connector_options(server);
            server.add_service(edge::learning(edge.clone(), options));
            let options = connector_options(server);
            server.add_service(edge::following(edge.clone(), options));
            let options = connector_options(server);
            server.add_service(edge::probes(edge.clone(), options));
            let options = connector_options(server);
            server.add_service(edge::identity(edge.clone(), options));
        }
        let filters = self.filters.iter().zip(&listeners.filters);
        for ((filter, address), (shown, _)) in filters.zip(&tls.filters) {
            let name = filter.name();
            let filter = FilterProxy(filter.clone());
            let app = proxy(server, filter, CLIENT_KEEP_ALIVE);
            let mut service = connection::behind(&self.edges, name, app);
            service.threads = Some(1);
            listen(&mut service, address, shown.as_ref())?;
            server.add_service(service);
        }
        Ok(())
    }
}

/// The operator's port is a server of its own, because Pingora closes all listeners of a server at
/// once, and whoever watches `/readyz` has to see it turn.
fn admin_server(
    admin: Admin,
    door: &Arc<Door>,
    address: &Address,
    shown: Option<&Arc<Shown>>,
) -> pingora::Result<Server> {
    let mut server = Server::new_with_opt_and_conf(None, ServerConf::default());
    server.bootstrap();
    let mut service = connection::behind(door, "admin", admin);
    service.threads = Some(1);
    listen(&mut service, address, shown)?;
    server.add_service(service);
    Ok(server)
}

/// Lets a service listen, with TLS where there is a certificate for it.
fn listen<A>(
    service: &mut Service<A>,
    address: &Address,
    shown: Option<&Arc<Shown>>,
) -> pingora::Result<()> {
    match shown {
        Some(shown) => address.listen_tls(service, shown.settings()?),
        None => address.listen(service),
    }
    Ok(())
}

fn proxy<P>(server: &Server, proxy: P, idle: Duration) -> pingora::proxy::HttpProxy<P>
where
    P: pingora::proxy::ProxyHttp + Send + Sync + 'static,
    P::CTX: Send + Sync,
{
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    // Of HTTP/1 connections `bound_idleness` takes care.
    options.h2_idle_timeout = Some(idle.max(Duration::from_secs(1)));
    let mut proxy = pingora::proxy::http_proxy(&server.configuration, proxy);
    proxy.server_options = Some(options);
    proxy
}

fn connector_options(server: &Server) -> ConnectorOptions {
    ConnectorOptions::from_server_conf(&server.configuration)
}

fn server_conf(config: &Config) -> ServerConf {
    ServerConf {
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        upstream_keepalive_pool_size: UPSTREAM_POOL,
        // Pingora sleeps this long in any case; `drain` ends the process as soon as it is idle.
        grace_period_seconds: Some(config.timeouts.drain.as_secs()),
        graceful_shutdown_timeout_seconds: Some(1),
        max_retries: MOST_TRIES,
        ..ServerConf::default()
    }
}
