//! Simulated workers inside the test process, with sight of what reached them.

use std::{net::SocketAddr, sync::Arc, thread};

use kindred::{
    server::listeners::FreePorts,
    simulate::{
        transfer::Exchange,
        worker::{
            SimulatedWorkerConfig,
            recorder::{Recorded, Recorder},
            service,
        },
    },
    wire::Role,
};
use pingora::{
    listeners::TcpSocketOptions,
    server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, configuration::ServerConf},
};

use super::{eventually, raw};

/// One simulated worker.
pub struct Worker {
    pub name: String,
    pub role: Role,
    pub address: SocketAddr,
    pub recorder: Arc<Recorder>,
}

impl Worker {
    /// The inference requests that reached the worker.
    pub fn requests(&self) -> Vec<Recorded> {
        self.recorder
            .since(0)
            .into_iter()
            .filter(|request| request.method == "POST" && request.path.starts_with("/v1/"))
            .collect()
    }

    /// Lets the worker's next `count` inference requests misbehave.
    pub fn fault(&self, count: u32, fault: &str) {
        let order = serde_json::json!({"next": count, "fault": fault}).to_string();
        let answer = raw::post(self.address, "/simulate/fault", &[], &order);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Waits until every fault that was asked for has met its request.
    pub fn until_faults_are_met(&self) {
        eventually("every fault has met its request", || {
            let state = raw::get(self.address, "/simulate/state").json();
            (state["planned_faults"] == 0).then_some(())
        });
    }
}

/// `contexts` context and `generations` generation workers that hand their caches to each other.
pub fn start(
    contexts: usize,
    generations: usize,
    adjust: impl Fn(&mut SimulatedWorkerConfig),
) -> Fleet {
    let roles = [(Role::Context, contexts), (Role::Generation, generations)];
    start_roles(&roles, adjust)
}

/// As many workers of each role; those of two legs hand their caches to each other.
pub fn start_roles(roles: &[(Role, usize)], adjust: impl Fn(&mut SimulatedWorkerConfig)) -> Fleet {
    let exchange = Exchange::new();
    let mut ports = FreePorts::default();
    let mut server = Server::new_with_opt_and_conf(
        None,
        ServerConf {
            threads: 1,
            ..ServerConf::default()
        },
    );
    server.bootstrap();
    let mut workers = Vec::new();
    for (role, number) in roles
        .iter()
        .flat_map(|&(role, count)| (0..count).map(move |number| (role, number)))
    {
        let mut config = SimulatedWorkerConfig::new(format!("{}-{number}", role.label()), role);
        config.exchange = Some(exchange.clone());
        adjust(&mut config);
        let address = ports.pick().unwrap();
        workers.push(Worker {
            name: config.name.clone(),
            role,
            address,
            recorder: config.recorder.clone(),
        });
        let mut service = service(config);
        service.threads = Some(1);
        let mut options = TcpSocketOptions::default();
        options.so_reuseport = Some(true);
        service.add_tcp_with_settings(&address.to_string(), options);
        server.add_service(service);
    }
    thread::spawn(move || {
        server.run(RunArgs {
            shutdown_signal: Box::new(Never),
        })
    });
    for worker in &workers {
        eventually("the simulated worker listens", || {
            std::net::TcpStream::connect(worker.address).ok()
        });
    }
    Fleet {
        workers,
        _ports: ports,
    }
}

/// Simulated workers of one test.
pub struct Fleet {
    pub workers: Vec<Worker>,
    _ports: FreePorts,
}

impl Fleet {
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Worker> {
        self.workers
            .iter()
            .filter(move |worker| worker.role == role)
    }

    /// Everything that reached the workers of a role, worker by worker.
    pub fn requests(&self, role: Role) -> Vec<Recorded> {
        self.of(role).flat_map(Worker::requests).collect()
    }

    /// One section of a configuration file that names the workers of a role, with a conversation
    /// router.
    pub fn section(&self, role: Role) -> String {
        section(role, &addresses(self.of(role)))
    }

    /// An upstream configuration file that names these workers, followed by `more` lines.
    pub fn yaml(&self, more: &str) -> String {
        yaml(
            &addresses(self.of(Role::Context)),
            &addresses(self.of(Role::Generation)),
            more,
        )
    }
}

fn addresses<'a>(workers: impl Iterator<Item = &'a Worker>) -> Vec<SocketAddr> {
    workers.map(|worker| worker.address).collect()
}

/// An upstream configuration file with conversation routers and an operator's port.
pub fn yaml(context: &[SocketAddr], generation: &[SocketAddr], more: &str) -> String {
    format!(
        "hostname: 127.0.0.1\nport: 0\nadmin: {{listen: '127.0.0.1:0'}}\n{}{}{more}\n",
        section(Role::Context, context) + "\n",
        section(Role::Generation, generation) + "\n",
    )
}

fn section(role: Role, addresses: &[SocketAddr]) -> String {
    let urls: Vec<_> = addresses
        .iter()
        .map(|address| format!("'{address}'"))
        .collect();
    format!(
        "{}_servers: {{num_instances: {}, urls: [{}], router: {{type: conversation}}}}",
        role.label(),
        urls.len(),
        urls.join(", ")
    )
}

struct Never;

#[async_trait::async_trait]
impl ShutdownSignalWatch for Never {
    async fn recv(&self) -> ShutdownSignal {
        std::future::pending().await
    }
}
