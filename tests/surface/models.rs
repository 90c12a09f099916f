//! The list of models, and each of them.

use std::{sync::Mutex, thread};

use serde_json::{Value, json};

use super::*;
use crate::support::{
    eventually,
    scripted::{self, Scripted},
    stand_in::Canned,
};

fn listing(ids: &[&str]) -> String {
    let cards: Vec<_> = ids
        .iter()
        .map(|id| {
            json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "vllm",
                   "root": "/secret/path", "permission": [{"id": "secret"}], "max_model_len": 4096})
        })
        .collect();
    json!({"object": "list", "data": cards}).to_string()
}

fn ids(list: &Value) -> Vec<&str> {
    let cards = list["data"].as_array().unwrap().iter();
    cards.map(|card| card["id"].as_str().unwrap()).collect()
}

fn serve(context: &[SocketAddr], generation: &[SocketAddr], more: &str) -> Kindred {
    Kindred::serve(&fleet::yaml(context, generation, more))
}

#[test]
fn the_models_are_the_union_of_what_workers_list() {
    let a = Canned::json(&listing(&["org/model", "b"]));
    let b = Canned::json(&listing(&["org/model", "a"]));
    let dead = Canned::answering("");
    let broken = Canned::json("{}");
    let refusing = Canned::answering(
        "HTTP/1.1 500 Internal\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    );
    let kindred = serve(
        &[a.address, dead.address, broken.address],
        &[b.address, refusing.address],
        "",
    );
    let list = ask(kindred.edge(), "GET", "/v1/models", &[]);
    assert_eq!(list.status, 200, "{}", list.text());
    assert_eq!(list.json()["object"], "list");
    assert_eq!(ids(&list.json()), ["a", "b", "org/model"]);
    assert!(!list.text().contains("secret"), "{}", list.text());
    let card = json!({"id": "org/model", "object": "model", "created": 1_700_000_000,
                      "owned_by": "vllm", "max_model_len": 4096});
    assert_eq!(list.json()["data"][2], card);
    for path in [
        "/v1/models/org/model",
        "/v1/models/org%2Fmodel",
        "/v1/models/org%2fmodel/",
        "/v1/models/%6frg/model?x=y",
    ] {
        let one = ask(kindred.edge(), "GET", path, &[]);
        assert_eq!((one.status, one.json()), (200, card.clone()), "{path}");
    }
    for path in [
        "/v1/models/org",
        "/v1/models/ORG/model",
        "/v1/models/%22%3Cx%3E",
    ] {
        let none = ask(kindred.edge(), "GET", path, &[]);
        assert_eq!(none.status, 404, "{path}: {}", none.text());
        let error = &none.json()["error"];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("model_not_found"), &json!("model"))
        );
    }
    // All of this was asked once.
    assert_eq!((a.requests(), b.requests()), (1, 1));
}

#[test]
fn one_request_asks_and_the_others_wait_for_it() {
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let worker = Scripted::start(move |_| {
        // Held until all have come.
        let _ = gate.lock().unwrap().recv_timeout(support::PATIENCE);
        scripted::json(&listing(&["m"]))
    });
    let kindred = serve(&[worker.address], &[worker.address], "");
    thread::scope(|threads| {
        let askers: Vec<_> = (0..8)
            .map(|_| threads.spawn(|| ask(kindred.edge(), "GET", "/v1/models", &[])))
            .collect();
        eventually("the worker is asked", || {
            (!worker.seen().is_empty()).then_some(())
        });
        go.send(()).unwrap();
        for asker in askers {
            let list = asker.join().unwrap();
            assert_eq!((list.status, ids(&list.json())), (200, vec!["m"]));
        }
    });
    // The worker is in both fleets, and one address is asked once.
    let asked = worker.only();
    assert!(
        asked.head.starts_with("GET /v1/models HTTP/1.1"),
        "{}",
        asked.head
    );
}

#[test]
fn without_a_worker_that_says_there_is_no_list() {
    let dead = Canned::answering("");
    let kindred = serve(&[dead.address], &[dead.address], "");
    for path in ["/v1/models", "/v1/models/m"] {
        let answer = ask(kindred.edge(), "GET", path, &[]);
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "no_models");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(!answer.text().contains("127.0.0.1"));
    }
    let counted = [r#"route="models""#, r#"outcome="no_instance""#];
    kindred.assert_metric("kindred_requests_total", &counted, 2.0);
}

#[test]
fn a_worker_that_hangs_holds_nobody_up_for_long() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = hangs.local_addr().map(|address| (address, hangs)).unwrap();
    let good = Canned::json(&listing(&["m"]));
    let kindred = serve(&[hangs.0], &[good.address], "");
    let list = ask(kindred.edge(), "GET", "/v1/models", &[]);
    assert_eq!(ids(&list.json()), ["m"]);
    kindred.assert_idle();
}

#[test]
fn those_who_wait_in_vain_go_together() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let kindred = serve(&[address], &[address], "");
    thread::scope(|threads| {
        let askers: Vec<_> = (0..40)
            .map(|_| threads.spawn(|| ask(kindred.edge(), "GET", "/v1/models", &[])))
            .collect();
        // One after the other they would take longer than a test may.
        for asker in askers {
            assert_eq!(asker.join().unwrap().status, 503);
        }
    });
}

#[test]
fn named_models_are_listed_with_their_aliases() {
    let unnamed = Canned::json(&listing(&["elsewhere", "small"]));
    let silent = Canned::answering("");
    let models = |address: SocketAddr| {
        format!(
            "models: {{small: {{aliases: [tiny, 'org/tiny'], aggregated_servers: \
             {{num_instances: 1, urls: ['{address}']}}}}}}"
        )
    };
    let kindred = serve(
        &[unnamed.address],
        &[unnamed.address],
        &models(silent.address),
    );
    let list = ask(kindred.edge(), "GET", "/v1/models", &[]).json();
    assert_eq!(ids(&list), ["elsewhere", "org/tiny", "small", "tiny"]);
    assert_eq!(list["data"][2]["owned_by"], "kindred", "{list}");
    assert_eq!(
        ask(kindred.edge(), "GET", "/v1/models/org/tiny", &[]).status,
        200
    );
    let info = ask(kindred.edge(), "GET", "/cluster_info", &[]).json();
    let aggregated = &info["server_lists"]["aggregated"];
    assert_eq!(aggregated, &json!([silent.address.to_string()]), "{info}");
    // Named ones are known whatever the workers say.
    let kindred = serve(
        &[silent.address],
        &[silent.address],
        &models(silent.address),
    );
    let list = ask(kindred.edge(), "GET", "/v1/models", &[]).json();
    assert_eq!(ids(&list), ["org/tiny", "small", "tiny"]);
}
