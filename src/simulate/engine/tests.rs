use super::*;

fn engine(ranks: u32, cache_blocks: usize) -> Arc<Engine> {
    Engine::new(EngineConfig {
        ranks,
        cache_blocks,
        block_size: 4,
        ..EngineConfig::default()
    })
}

fn run(engine: &Arc<Engine>, rank: u32, tokens: &[u32]) -> usize {
    let mut job = engine
        .admit(Some(rank), tokens.to_vec())
        .expect("the rank exists");
    job.receive();
    let cached = job.cached_tokens();
    job.finish(&[]);
    cached
}

#[test]
fn each_rank_has_its_own_cache() {
    let engine = engine(2, 16);
    let parent: Vec<u32> = (0..9).collect();
    let child: Vec<u32> = (0..17).collect();
    assert_eq!(run(&engine, 0, &parent), 0);
    assert_eq!(run(&engine, 1, &child), 0);
    assert_eq!(run(&engine, 0, &child), 8);
    assert_eq!(run(&engine, 1, &child), 16);
    assert_eq!(engine.snapshot().cache_blocks, [4, 4]);
}

#[test]
fn nothing_is_cached_before_it_was_computed() {
    let engine = engine(1, 16);
    let prompt: Vec<u32> = (0..9).collect();
    let first = engine.admit(None, prompt.clone()).expect("one rank");
    let second = engine.admit(None, prompt.clone()).expect("one rank");
    assert_eq!(second.cached_tokens(), 0);
    drop((first, second));
    assert_eq!(
        run(&engine, 0, &prompt),
        0,
        "both were cancelled before prefill"
    );
    assert_eq!(run(&engine, 0, &prompt), 8);
}

#[test]
fn the_answer_continues_the_cached_prompt() {
    let engine = engine(1, 16);
    let mut job = engine.admit(None, (0..6).collect()).expect("one rank");
    job.receive();
    job.finish(&[6, 7, 8]);
    assert_eq!(run(&engine, 0, &(0..12).collect::<Vec<_>>()), 8);
}

#[test]
fn counts_return_to_zero_on_every_way_out() {
    let engine = engine(2, 16);
    let mut done = engine.admit(Some(0), vec![1, 2]).expect("rank 0");
    let left = engine.admit(Some(1), vec![1, 2]).expect("rank 1");
    assert_eq!(engine.snapshot().active, [1, 1]);
    done.receive();
    done.finish(&[3]);
    drop(left);
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.active, [0, 0]);
    assert_eq!((snapshot.completed, snapshot.cancelled), (1, 1));
}

#[test]
fn without_a_rank_the_least_active_one_takes_it_and_equals_take_turns() {
    let engine = engine(3, 16);
    let admit = |rank| engine.admit(rank, vec![1]).expect("the rank exists");
    let jobs = [admit(None), admit(None), admit(None)];
    assert_eq!(jobs.each_ref().map(Job::rank), [0, 1, 2]);
    let busy = admit(Some(0));
    assert_eq!(admit(None).rank(), 1);
    drop(busy);
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let error = engine(2, 4).admit(Some(2), vec![1]).expect_err("no rank 2");
    assert_eq!(
        error.to_string(),
        "data parallel rank 2 does not exist: this worker has ranks 0 to 1"
    );
}

#[test]
fn statistics_and_events_are_read_once() {
    let engine = engine(2, 1);
    run(&engine, 1, &(0..9).collect::<Vec<_>>());
    run(&engine, 1, &(10..19).collect::<Vec<_>>());
    let rows = engine.take_statistics();
    assert_eq!(rows.len() % 2, 0);
    assert_eq!(rows[1]["attentionDpRank"], 1);
    assert_eq!(rows[1]["inflightBatchingStats"]["numGenRequests"], 1);
    assert!(engine.take_statistics().is_empty());
    let events = engine.take_events();
    let kinds: Vec<&Value> = events.iter().map(|event| &event["data"]["type"]).collect();
    assert_eq!(kinds, ["stored", "stored", "removed"]);
    assert_eq!(events[0]["attention_dp_rank"], 1);
    assert!(engine.take_events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn time_passes_for_what_is_not_cached() {
    let engine = Engine::new(EngineConfig {
        block_size: 4,
        prefill_per_token: Duration::from_millis(1),
        decode_interval: Duration::from_millis(10),
        ..EngineConfig::default()
    });
    for expected in [9, 1] {
        let start = tokio::time::Instant::now();
        let mut job = engine.admit(None, (0..9).collect()).expect("one rank");
        job.prefill().await;
        assert_eq!(start.elapsed(), Duration::from_millis(expected));
        job.next_token().await;
        assert_eq!(start.elapsed(), Duration::from_millis(expected + 10));
        job.finish(&[]);
    }
}
