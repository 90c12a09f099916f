//! An instance that leaves its fleet while its answer is waited for.

mod support;

use std::{
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use support::{
    Kindred, chat, eventually, fleet,
    played::{Act, Played, context_answer, generation_answer},
    raw,
    reload::reload,
};

const CHAT: &str = "/v1/chat/completions";
const FOR_LONG: &str = "max_retries: 1\ntimeouts: {context: 10m, first_byte: 10m}";

/// Workers of which the one that is asked first says nothing.
fn first_is_silent(answer: fn(&support::scripted::Seen) -> Vec<u8>) -> Vec<Played> {
    let asked = Arc::new(AtomicUsize::new(0));
    (0..2)
        .map(|_| {
            let asked = asked.clone();
            Played::start(move |seen, _| match asked.fetch_add(1, Relaxed) {
                0 => Act::Silence,
                _ => Act::Answer(answer(seen)),
            })
        })
        .collect()
}

fn good(answer: fn(&support::scripted::Seen) -> Vec<u8>) -> Played {
    Played::start(move |seen, _| Act::Answer(answer(seen)))
}

/// Sends a request, waits until one of `workers` has it, and takes that one out of the
/// configuration that `yaml` makes of the rest. The answer is the connection of the client.
fn lose_the_asked(
    kindred: &Kindred,
    workers: &[Played],
    yaml: impl Fn(&[SocketAddr]) -> String,
) -> std::net::TcpStream {
    let mut client = raw::connect(kindred.edge());
    let request = raw::request(CHAT, &[], chat("hello").to_string().as_bytes());
    client.write_all(&request).unwrap();
    let asked = eventually("one has the request", || {
        workers.iter().position(|worker| worker.count() == 1)
    });
    reload(kindred, &yaml(&[workers[1 - asked].address]), "applied");
    client
}

fn lost(kindred: &Kindred) -> f64 {
    kindred.metric("kindred_leg_retries_total", &["reason=\"lost\""])
}

#[test]
fn case_h15_a_context_leg_at_an_instance_that_is_removed_goes_to_another_one() {
    let generation = good(generation_answer);
    let contexts = first_is_silent(context_answer);
    let yaml = |all: &[SocketAddr]| fleet::yaml(all, &[generation.address], FOR_LONG);
    let both: Vec<_> = contexts.iter().map(|one| one.address).collect();
    let kindred = Kindred::serve(&yaml(&both));
    let mut client = lose_the_asked(&kindred, &contexts, yaml);
    let answer = raw::read_answer(&mut client);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ids: Vec<_> = contexts.iter().map(|one| one.requests()[0].id()).collect();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(lost(&kindred), 1.0);
    kindred.assert_idle();
}

#[test]
fn case_h15_a_generation_leg_is_waited_for_where_its_cache_may_be() {
    let context = good(context_answer);
    let generations = first_is_silent(generation_answer);
    let yaml = |all: &[SocketAddr]| fleet::yaml(&[context.address], all, FOR_LONG);
    let both: Vec<_> = generations.iter().map(|one| one.address).collect();
    let kindred = Kindred::serve(&yaml(&both));
    let client = lose_the_asked(&kindred, &generations, yaml);
    assert_eq!(generations.iter().map(Played::count).sum::<usize>(), 1);
    assert_eq!(lost(&kindred), 0.0);
    drop(client);
    eventually("its worker is left", || {
        generations.iter().any(|one| one.is_left(0)).then_some(())
    });
    kindred.assert_idle();
}
