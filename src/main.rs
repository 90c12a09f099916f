//! The command line: parses it, calls the library, prints what comes back.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use kindred::{
    config::{Config, TlsConfig},
    conformance::{
        self,
        lines::{self, Tally},
    },
    edge,
    server::{Running, listeners::FreePorts, single::SingleWorker, tls::Loaded},
    simulate::{
        demo::{Demo, Simulated},
        engine::EngineConfig,
        replay,
        worker::SimulatedWorkerConfig,
    },
    telemetry,
    wire::Role,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gateway, edge and worker filter that keep families of agents on the KV cache they share.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs what a configuration file describes.
    Serve {
        #[arg(short, long, value_name = "FILE", visible_alias = "config_file")]
        config: PathBuf,
    },
    /// Validates a configuration file.
    Check {
        #[arg(short, long, value_name = "FILE", visible_alias = "config_file")]
        config: PathBuf,
        /// Prints the resolved configuration with secrets masked.
        #[arg(long)]
        print: bool,
    },
    /// Runs gateway, edge, worker filters and a simulated fleet in one process.
    Demo {
        /// Port of the gateway and edge; 0 picks a free one.
        #[arg(long, default_value_t = 8000)]
        port: u16,
        /// Port of the operator's port; 0 picks a free one.
        #[arg(long, default_value_t = 9464)]
        admin_port: u16,
        /// Which legs follow the parent session.
        #[arg(long, value_enum, default_value_t = Scope::Context)]
        scope: Scope,
    },
    /// Runs one simulated worker, to try a configuration without a GPU.
    Simulate(SimulatedArgs),
    /// Signs JSON lines from standard input.
    Sign,
    /// Verifies JSON lines from standard input.
    Verify,
    /// Runs scenarios from standard input through the real routing code.
    Replay {
        #[arg(value_enum)]
        what: Replayed,
    },
    /// Compares a folder of expected values with what this program does.
    Conformance { folder: PathBuf },
}

#[derive(Debug, Args)]
struct SimulatedArgs {
    /// Where it listens, host:port; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    #[arg(long, value_enum)]
    role: SimulatedRole,
    /// Its name in its own reports.
    #[arg(long, default_value = "simulated")]
    name: String,
    /// Attention-DP ranks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Time to compute one token of a prompt that is not cached, such as 200us.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    prefill_per_token: Duration,
    /// Time between two tokens of an answer, such as 20ms.
    #[arg(long, default_value = "0s", value_parser = humantime::parse_duration)]
    decode_interval: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SimulatedRole {
    Context,
    Generation,
    Aggregated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    Context,
    Both,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Replayed {
    Router,
    Adp,
}

/// Exit code for input that cannot be used.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    match run(CommandLine::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(io::stderr(), "kindred: {message}");
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Whether everything that was checked holds, or why the input cannot be used.
fn run(command: Command) -> Result<bool, String> {
    match command {
        Command::Serve { config } => serve(&config),
        Command::Check { config, print } => check(&config, print),
        Command::Demo {
            port,
            admin_port,
            scope,
        } => demo(port, admin_port, scope == Scope::Both),
        Command::Simulate(worker) => simulate(worker),
        Command::Sign => {
            let lines = lines::sign_all(io::stdin().lock(), io::stdout().lock());
            usable(lines).map(|_| true)
        }
        Command::Verify => {
            let lines = lines::verify_all(io::stdin().lock(), io::stdout().lock());
            usable(lines).map(|tally| tally.refused == 0)
        }
        Command::Replay { what } => {
            let mut document = String::new();
            io::stdin()
                .read_to_string(&mut document)
                .map_err(|error| format!("standard input: {error}"))?;
            let out = &mut io::stdout().lock();
            match what {
                Replayed::Router => replay::replay_router(&document, out),
                Replayed::Adp => replay::replay_adp(&document, out),
            }
            .map_err(|error| error.to_string())?;
            Ok(true)
        }
        Command::Conformance { folder } => {
            let summary = conformance::run_dir(&folder, &mut io::stdout().lock())
                .map_err(|error| error.to_string())?;
            Ok(summary.failed == 0)
        }
    }
}

fn serve(file: &Path) -> Result<bool, String> {
    let config = Config::load(file).map_err(|error| error.to_string())?;
    let log = telemetry::log::init(&config.telemetry.log).map_err(|error| error.to_string())?;
    let access_log = telemetry::access_log::prepare(config.telemetry.access_log.as_ref())?;
    telemetry::access_log::replace(access_log);
    let running = Running::prepare(config, Vec::new(), FreePorts::default(), log)
        .map_err(|error| error.to_string())?;
    for warning in &running.config.warnings {
        tracing::warn!("{warning}");
    }
    let mut listening = Vec::new();
    if let Some(edge) = &running.listeners.edge {
        let scheme = scheme(running.config.tls.as_ref());
        listening.push(format!("kindred: serving on {scheme}://{}", edge.socket));
    }
    for (filter, address) in running
        .config
        .worker_filters
        .iter()
        .zip(&running.listeners.filters)
    {
        listening.push(format!(
            "kindred: worker filter {} on {}://{}",
            filter.name,
            scheme(filter.tls.as_ref()),
            address.socket
        ));
    }
    if let Some(admin) = &running.listeners.admin {
        let settings = running.config.admin.as_ref();
        let scheme = scheme(settings.and_then(|settings| settings.tls.as_ref()));
        listening.push(format!("kindred: admin on {scheme}://{}", admin.socket));
    }
    announce_when_up(running.listeners.sockets(), listening.join("\n"));
    running.run();
    Ok(true)
}

fn scheme(tls: Option<&TlsConfig>) -> &'static str {
    match tls {
        Some(_) => "https",
        None => "http",
    }
}

fn check(file: &Path, print: bool) -> Result<bool, String> {
    let config = Config::load(file).map_err(|error| error.to_string())?;
    edge::check(&config).map_err(|error| error.to_string())?;
    let certificates = Loaded::read(&config).map_err(|error| error.to_string())?;
    for warning in config.warnings.iter().chain(&certificates.warnings()) {
        // Nobody is left to warn when standard error is closed.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    let verdict = if print {
        config.to_yaml_masked()
    } else {
        format!("{}: good\n", file.display())
    };
    io::stdout()
        .write_all(verdict.as_bytes())
        .map_err(|error| format!("standard output: {error}"))?;
    Ok(true)
}

fn demo(port: u16, admin_port: u16, scope_both: bool) -> Result<bool, String> {
    let mut ports = FreePorts::default();
    let demo = Demo::plan(port, admin_port, scope_both, || ports.pick())
        .map_err(|error| error.to_string())?;
    let log =
        telemetry::log::init(&demo.config.telemetry.log).map_err(|error| error.to_string())?;
    let running = Running::prepare(demo.config, demo.workers, ports, log)
        .map_err(|error| error.to_string())?;
    if let (Some(edge), Some(admin)) = (&running.listeners.edge, &running.listeners.admin) {
        announce_when_up(
            running.listeners.sockets(),
            Demo::instructions(edge.socket, admin.socket),
        );
    }
    running.run();
    Ok(true)
}

fn simulate(args: SimulatedArgs) -> Result<bool, String> {
    let role = match args.role {
        SimulatedRole::Context => Role::Context,
        SimulatedRole::Generation => Role::Generation,
        SimulatedRole::Aggregated => Role::Aggregated,
    };
    let engine = EngineConfig {
        ranks: args.ranks,
        prefill_per_token: args.prefill_per_token,
        decode_interval: args.decode_interval,
        ..EngineConfig::default()
    };
    let worker = Simulated {
        listen: args.listen,
        config: SimulatedWorkerConfig {
            engine,
            ..SimulatedWorkerConfig::new(args.name.clone(), role)
        },
    };
    telemetry::log::init("warn").map_err(|error| error.to_string())?;
    let worker = SingleWorker::prepare(worker).map_err(|error| error.to_string())?;
    let (name, socket) = (args.name, worker.address);
    let text = format!("kindred: simulated worker {name} on http://{socket}");
    announce_when_up(vec![socket], text);
    worker.run();
    Ok(true)
}

/// Prints `text` once every listener takes connections.
fn announce_when_up(sockets: Vec<SocketAddr>, text: String) {
    std::thread::spawn(move || {
        for socket in sockets {
            while TcpStream::connect_timeout(&reachable(socket), Duration::from_secs(1)).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // A reader that went away does not end the service.
        let _ = writeln!(io::stdout(), "{text}");
    });
}

/// Where a listener on every address can be reached.
fn reachable(mut socket: SocketAddr) -> SocketAddr {
    if socket.ip().is_unspecified() {
        socket.set_ip(if socket.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    socket
}

/// The lines' outcomes, unless some could not be read: those are no answer at all.
fn usable(lines: io::Result<Tally>) -> Result<Tally, String> {
    let tally = lines.map_err(|error| error.to_string())?;
    match tally.unusable {
        0 => Ok(tally),
        unusable => Err(format!(
            "{unusable} lines could not be used; see their errors"
        )),
    }
}
