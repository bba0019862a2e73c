//! The internode transport on the simulated network: partitions, cuts at every byte, lost answers,
//! restarts under load. No request is executed twice or answered to the wrong caller. A request
//! that failed as "not executed" was not executed. Once the network works, calls succeed.
//!
//! `SEEDS=n` runs n seeds (default 3) from `FIRST_SEED=n` on.
use bytes::Bytes;
use internode::{
    AddressBook, CallError, Caller, Identity, Internode, InternodeConfig, InternodeListener, Liveness, NodeStatus,
    Peer, PeerAddress, Refusal, Verb,
};
use model::HostId;
use rand::Rng;
use rt::Pieces;
use rt::net::{AsyncReadExt, AsyncWriteExt, TcpStream};
use rt::shard::{PerShard, ShardId};
use rt::sim::{Disk, World, trace};
use rt::sync::Deadline;
use rt::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

const PORT: u16 = 7000;
const NAMES: [&str; 3] = ["a", "b", "c"];
const SHARDS: [u16; 3] = [2, 3, 1];
/// A node that only sends requests.
const CLIENT: usize = 9;
/// Longer than any silence that a node tolerates.
const LONG: Duration = Duration::from_secs(9);

/// The internode of every shard of every node.
static INTERNODES: LazyLock<PerShard<Internode>> = LazyLock::new(PerShard::new);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(3)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn host(n: usize) -> HostId {
    HostId::from_bytes([n as u8 + 1; 16])
}

/// What the test knows of all nodes. It is the test's memory: no fault loses it.
#[derive(Default)]
struct Ledger {
    /// How often each request was begun on its shard.
    begun: BTreeMap<u64, u32>,
    /// Requests by outcome: answered, or certainly not executed. Others are unknown.
    answered: Vec<u64>,
    not_done: Vec<u64>,
    unknown: Vec<u64>,
    next: u64,
    /// How each node sees the others.
    liveness: BTreeMap<usize, Liveness>,
    /// For how long each node was paused, in total.
    still: BTreeMap<usize, Duration>,
    /// Whether new requests have stopped.
    quiet: bool,
    wrong: Vec<String>,
}

#[derive(Clone)]
struct Shared {
    ledger: Arc<Mutex<Ledger>>,
    addresses: Arc<Vec<SocketAddr>>,
    load: bool,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("one thread")
    }

    fn book(&self, own: usize) -> AddressBook {
        let peer = |n: usize| PeerAddress {
            address: self.addresses[n],
            shards: SHARDS[n],
            datacenter: "dc".into(),
            rack: NAMES[n].into(),
        };
        AddressBook {
            peers: (0..NAMES.len()).filter(|n| *n != own).map(|n| (host(n), peer(n))).collect(),
            ..AddressBook::default()
        }
    }
}

/// Answers with the number and the body of the request, now, later or never.
async fn handle(shared: Shared, _caller: Caller, body: Bytes) -> Result<Pieces, Refusal> {
    let id = u64::from_le_bytes(*body.first_chunk().ok_or_else(|| Refusal::malformed("no number"))?);
    *shared.ledger().begun.entry(id).or_default() += 1;
    match rt::random::below(10) {
        0 => return Err(Refusal::failed("it did not work out")),
        1..=3 => rt::time::sleep(millis(rt::random::below(400))).await,
        4 => {
            rt::shard::call(ShardId(0), || rt::time::sleep(millis(1))).await;
        }
        _ => {}
    }
    Ok(body.into())
}

/// Sends a request from a node, and checks its outcome.
async fn ask(shared: &Shared, own: usize, to: Peer, size: usize, allowed: Duration) -> Result<Bytes, CallError> {
    let still = || shared.ledger().still.get(&own).copied().unwrap_or_default();
    let id = {
        let mut ledger = shared.ledger();
        ledger.next += 1;
        ledger.next
    };
    let still_before = still();
    let mut body = id.to_le_bytes().to_vec();
    body.resize(8 + size, id as u8);
    let body = Bytes::from(body);
    let internode = INTERNODES.get();
    let began = rt::time::now();
    let verb = if id.is_multiple_of(7) { Verb::Raft } else { Verb::Replica };
    let answer = internode.call(to, verb, body.clone(), Deadline(began + allowed)).await;
    let took = rt::time::now() - began;
    trace(&format!(
        "request {id} ends after {took:?}: {}",
        answer.as_ref().map_or_else(ToString::to_string, |_| "well".into())
    ));
    // One tick of the simulated network and one of the timers. A node that is paused does not
    // notice its timeout.
    let allowed = allowed + millis(5) + (still() - still_before);
    let mut ledger = shared.ledger();
    if took > allowed {
        ledger.wrong.push(format!("request {id} took {took:?} of {allowed:?}"));
    }
    match &answer {
        Ok(got) if *got != body => ledger.wrong.push(format!("request {id} got another one's answer")),
        Ok(_) => ledger.answered.push(id),
        Err(error) if error.may_have_been_done() => ledger.unknown.push(id),
        Err(_) => ledger.not_done.push(id),
    }
    answer
}

async fn load(shared: Shared, own: usize) {
    loop {
        rt::time::sleep(millis(rt::random::below(60))).await;
        if shared.ledger().quiet {
            continue;
        }
        let n = (own + 1 + rt::random::below(NAMES.len() as u64 - 1) as usize) % NAMES.len();
        let to = Peer { host: host(n), shard: rt::random::below(4) as u16 };
        let size = if rt::random::below(4) == 0 { rt::random::below(60_000) } else { rt::random::below(200) };
        let _ = ask(&shared, own, to, size as usize, millis(20 + rt::random::below(1500))).await;
    }
}

/// What every shard of a node runs.
async fn node(shard: ShardId, shared: Shared, own: usize) {
    if shard.0 != 0 {
        return rt::shard::stopping().cancelled().await;
    }
    let listener = InternodeListener::open(([0, 0, 0, 0], PORT).into()).await.expect("a port");
    let identity = Identity {
        host: host(own),
        cluster: "Simulated".into(),
        address: shared.addresses[own],
        datacenter: "dc".into(),
        rack: NAMES[own].into(),
        features: Vec::new(),
    };
    internode::install(*INTERNODES, identity, InternodeConfig::default(), None, None).await;
    internode::publish_book(*INTERNODES, shared.book(own)).await;
    let on_shards = shared.clone();
    rt::shard::call_all(move || {
        let shared = on_shards.clone();
        async move {
            let internode = INTERNODES.get();
            for verb in [Verb::Replica, Verb::Raft] {
                let shared = shared.clone();
                internode.serve(verb, move |caller, body| handle(shared.clone(), caller, body));
            }
            internode.serve(Verb::Join, |_, body| async move {
                rt::time::sleep(LONG).await;
                Ok(body.into())
            });
            if shared.load {
                for _ in 0..2 {
                    rt::task::spawn(load(shared.clone(), own)).detach();
                }
            }
        }
    })
    .await;
    let running = internode::serve(INTERNODES.get(), listener);
    let stopping = rt::shard::stopping();
    while !stopping.is_cancelled() {
        rt::time::sleep(millis(50)).await;
        let liveness = INTERNODES.get().liveness();
        shared.ledger().liveness.insert(own, Liveness::clone(&liveness));
    }
    running.stop().await;
}

fn world(seed: u64, load: bool) -> (World, Shared) {
    let mut world = World::new(seed);
    let addresses = NAMES.iter().map(|name| SocketAddr::new(world.lookup(name), PORT)).collect();
    let shared = Shared { ledger: Arc::default(), addresses: Arc::new(addresses), load };
    for (n, name) in NAMES.iter().enumerate() {
        let shared = shared.clone();
        world.node(name, SHARDS[n].into(), &Disk::new(seed), move |shard| node(shard, shared.clone(), n));
    }
    (world, shared)
}

fn everybody_is(shared: &Shared, wanted: NodeStatus) -> bool {
    let ledger = shared.ledger();
    let sees = |own: usize| (0..NAMES.len()).filter(move |other| *other != own);
    (0..NAMES.len()).all(|own| {
        sees(own).all(|other| ledger.liveness.get(&own).is_some_and(|seen| seen.status(host(other)) == wanted))
    })
}

/// Injects faults for some seconds under load, then none. Returns the hash of the trace and the
/// number of answered requests.
fn disasters(seed: u64) -> (u64, usize) {
    let (mut world, shared) = world(seed, true);
    world.run_for(millis(1000));
    assert!(everybody_is(&shared, NodeStatus::Up), "seed {seed}: a cluster without faults");
    let mut down: Vec<&str> = Vec::new();
    for _ in 0..14 {
        let (first, second) = (world.rng().gen_range(0..3usize), world.rng().gen_range(1..3usize));
        let (one, other) = (NAMES[first], NAMES[(first + second) % 3]);
        match world.rng().gen_range(0..9) {
            0 | 1 => world.partition(one, other),
            2 => world.partition_oneway(one, other),
            3 | 4 => world.repair(one, other),
            5 if down.is_empty() => {
                // Half of the power failures close no connection.
                if world.rng().gen_ratio(1, 2) {
                    NAMES.iter().filter(|name| **name != one).for_each(|name| world.partition(one, name));
                }
                world.crash(one);
                down.push(one);
            }
            6 => world.hold(one, other),
            7 => {
                let time = millis(world.rng().gen_range(100..5000));
                world.pause_node(one, time);
                *shared.ledger().still.entry(first).or_default() += time;
            }
            _ => {
                world.release(one, other);
                down.drain(..).for_each(|name| world.bounce(name));
            }
        }
        let time = millis(world.rng().gen_range(20..1200));
        world.run_for(time);
    }
    down.drain(..).for_each(|name| world.bounce(name));
    for one in NAMES {
        for other in NAMES.iter().filter(|other| **other != one) {
            world.release(one, other);
            world.repair(one, other);
        }
    }
    // As many answers in a row as the worst flapping requires, with a margin.
    let before = shared.ledger().answered.len();
    world.run_for(Duration::from_secs(12));
    assert!(everybody_is(&shared, NodeStatus::Up), "seed {seed}: not all are up: {:?}", shared.ledger().liveness);
    let healthy = shared.ledger().answered.len();
    world.run_for(Duration::from_secs(2));
    assert!(shared.ledger().answered.len() > healthy + 50, "seed {seed}: the cluster is whole, and little is answered");
    shared.ledger().quiet = true;
    world.run_for(Duration::from_secs(3));
    let ledger = shared.ledger();
    assert!(ledger.wrong.is_empty(), "seed {seed}: {:#?}", ledger.wrong);
    let begun = |id: &u64| ledger.begun.get(id).copied().unwrap_or(0);
    assert!(ledger.begun.values().all(|times| *times == 1), "seed {seed}: something was done twice");
    assert!(ledger.answered.iter().all(|id| begun(id) == 1), "seed {seed}: answered, and never done");
    let done: Vec<_> = ledger.not_done.iter().filter(|id| begun(id) != 0).collect();
    assert!(done.is_empty(), "seed {seed}: said to be not done, and done: {done:?}");
    assert!(before > 100 && !ledger.not_done.is_empty() && !ledger.unknown.is_empty(), "seed {seed}: no disaster");
    (world.trace_hash(), ledger.answered.len())
}

#[test]
fn calls_end_with_a_true_outcome_under_network_faults() {
    for seed in seeds() {
        disasters(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_disasters() {
    let first = disasters(1000);
    #[allow(clippy::disallowed_methods, reason = "the second run has a thread of its own")]
    let second = std::thread::spawn(|| disasters(1000)).join().expect("ran");
    assert_eq!(first, second);
}

/// How long it takes until every node sees node c as `wanted`.
fn until_c_is(world: &mut World, shared: &Shared, wanted: NodeStatus) -> Duration {
    let began = world.elapsed();
    let seen = |n: usize| shared.ledger().liveness.get(&n).is_some_and(|seen| seen.status(host(2)) == wanted);
    while !(seen(0) && seen(1)) {
        world.run_for(millis(10));
        assert!(world.elapsed() - began < Duration::from_secs(20), "c is never {wanted:?} (seed {})", world.seed());
    }
    world.elapsed() - began
}

#[test]
fn a_node_that_dies_is_down_in_two_seconds_and_up_as_soon_as_it_is_back() {
    for seed in seeds() {
        for quietly in [false, true] {
            let (mut world, shared) = world(seed, false);
            world.run_for(millis(1000));
            assert!(everybody_is(&shared, NodeStatus::Up));
            if quietly {
                world.partition("c", "a");
                world.partition("c", "b");
            }
            world.crash("c");
            let took = until_c_is(&mut world, &shared, NodeStatus::Down);
            assert!(took > millis(1700) && took < millis(2500), "seed {seed}: down after {took:?}");
            world.run_for(Duration::from_secs(8));
            if quietly {
                world.repair("c", "a");
                world.repair("c", "b");
            }
            world.bounce("c");
            let took = until_c_is(&mut world, &shared, NodeStatus::Up);
            assert!(took < millis(2500), "seed {seed}: up after {took:?}");
        }
    }
}

#[test]
fn a_stalled_node_marks_no_other_down_and_is_soon_up_again() {
    for seed in seeds() {
        for load in [false, true] {
            let (mut world, shared) = world(seed, load);
            world.run_for(millis(1000));
            assert!(everybody_is(&shared, NodeStatus::Up), "seed {seed}");
            let still = millis(world.rng().gen_range(2600..9000));
            world.pause_node("c", still);
            assert!(until_c_is(&mut world, &shared, NodeStatus::Down) < millis(2500), "seed {seed}");
            let goes_on = millis(1000) + still;
            while world.elapsed() < goes_on + millis(2500) {
                world.run_for(millis(10));
                let ledger = shared.ledger();
                let seen = |own: usize, other: usize| ledger.liveness[&own].status(host(other));
                let of_others = [seen(0, 1), seen(1, 0), seen(2, 0), seen(2, 1)];
                assert_eq!(of_others, [NodeStatus::Up; 4], "seed {seed}, at {:?}", world.elapsed());
            }
            assert!(everybody_is(&shared, NodeStatus::Up), "seed {seed}");
        }
    }
}

#[test]
fn a_network_cut_one_way_is_seen_from_both_sides() {
    for seed in seeds() {
        let (mut world, shared) = world(seed, false);
        world.run_for(millis(1000));
        world.partition_oneway("c", "a");
        world.run_for(millis(2800));
        let seen = |own: usize, other: usize| shared.ledger().liveness[&own].status(host(other));
        assert_eq!((seen(0, 2), seen(2, 0)), (NodeStatus::Down, NodeStatus::Down), "seed {seed}");
        assert_eq!((seen(1, 2), seen(1, 0), seen(0, 1), seen(2, 1)), {
            let up = NodeStatus::Up;
            (up, up, up, up)
        });
        world.repair("c", "a");
        // Requests that began while the network was cut time out, because the simulated network
        // does not resend.
        world.run_for(millis(8000));
        assert!(everybody_is(&shared, NodeStatus::Up), "seed {seed}");
    }
}

/// Runs `main` beside the nodes, as a node of its own with the address book of node a's place.
fn with_client<F, Fut>(world: &mut World, shared: &Shared, main: F)
where
    F: Fn(Shared) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let shared = shared.clone();
    let address = SocketAddr::new(world.lookup("client"), PORT);
    let main = std::rc::Rc::new(main);
    world.client("client", move || {
        let (shared, main) = (shared.clone(), main.clone());
        async move {
            let identity = Identity {
                host: host(CLIENT),
                cluster: "Simulated".into(),
                address,
                datacenter: "dc".into(),
                rack: "client".into(),
                features: Vec::new(),
            };
            internode::install(*INTERNODES, identity, InternodeConfig::default(), None, None).await;
            internode::publish_book(*INTERNODES, shared.book(CLIENT)).await;
            main(shared).await;
        }
    });
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_long_request_keeps_its_connection() {
    let (mut world, shared) = world(5, false);
    with_client(&mut world, &shared, |_shared| async move {
        let internode = INTERNODES.get();
        // No other request uses the connection.
        let to = Peer { host: host(1), shard: 2 };
        let slow = internode.call(to, Verb::Join, Bytes::from_static(b"slow"), Deadline::after(SOON)).await;
        assert_eq!(slow, Ok(Bytes::from_static(b"slow")));
    });
    world.run(Duration::from_secs(60));
    assert!(shared.ledger().wrong.is_empty());
}

#[test]
fn a_done_request_with_a_lost_answer_is_not_reported_as_not_done() {
    for seed in seeds() {
        let (mut world, shared) = world(seed, false);
        let done = Arc::new(Mutex::new(0u32));
        let counted = done.clone();
        with_client(&mut world, &shared, move |shared| {
            let done = counted.clone();
            async move {
                let to = Peer { host: host(0), shard: 1 };
                for _ in 0..40 {
                    let answer = ask(&shared, CLIENT, to, 100, millis(900)).await;
                    *done.lock().expect("one thread") += u32::from(answer.is_ok());
                    rt::time::sleep(millis(30)).await;
                }
            }
        });
        world.run_for(millis(600));
        world.partition_oneway("a", "client");
        world.run_for(millis(4000));
        world.repair("a", "client");
        world.run(Duration::from_secs(90));
        let ledger = shared.ledger();
        assert!(ledger.wrong.is_empty(), "seed {seed}: {:?}", ledger.wrong);
        let lost = ledger.unknown.iter().filter(|id| ledger.begun.contains_key(id)).count();
        assert!(lost > 0, "seed {seed}: no answer was lost");
        assert!(ledger.not_done.iter().all(|id| !ledger.begun.contains_key(id)), "seed {seed}");
        assert!(*done.lock().expect("one thread") > 15, "seed {seed}: it did not recover");
    }
}

/// Forwards bytes between clients and node a. The n-th connection is cut after `at[n]` bytes;
/// connections after the last are not cut.
async fn cutter(to: SocketAddr, at: Arc<Vec<(usize, bool)>>, cut: Arc<Mutex<usize>>) {
    let listener = rt::net::listen(([0, 0, 0, 0], PORT).into(), Default::default()).await.expect("a port");
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        let n = {
            let mut cut = cut.lock().expect("one thread");
            *cut += 1;
            *cut - 1
        };
        let limits = match at.get(n) {
            Some((bytes, true)) => (*bytes, usize::MAX),
            Some((bytes, false)) => (usize::MAX, *bytes),
            None => (usize::MAX, usize::MAX),
        };
        rt::task::spawn(pass_on(near, to, limits)).detach();
    }
}

async fn pass_on(mut near: TcpStream, to: SocketAddr, (mut forth, mut back): (usize, usize)) {
    let Ok(mut far) = rt::net::connect(to).await else { return };
    let (mut from_near, mut from_far) = ([0; 4096], [0; 4096]);
    while forth > 0 && back > 0 {
        let far_first = futures::select(&mut near, &mut from_near, &mut far, &mut from_far).await;
        match far_first {
            Some((true, n)) => {
                let n = n.min(back);
                back -= n;
                if near.write_all(&from_far[..n]).await.is_err() {
                    return;
                }
            }
            Some((false, n)) => {
                let n = n.min(forth);
                forth -= n;
                if far.write_all(&from_near[..n]).await.is_err() {
                    return;
                }
            }
            None => return,
        }
    }
}

mod futures {
    use super::*;
    use std::pin::pin;
    use std::task::Poll;

    /// Reads from the stream that has data. Returns whether it was the second, and the number of
    /// bytes; `None` at the end of a stream.
    pub async fn select(
        near: &mut TcpStream,
        from_near: &mut [u8],
        far: &mut TcpStream,
        from_far: &mut [u8],
    ) -> Option<(bool, usize)> {
        let mut near = pin!(near.read(from_near));
        let mut far = pin!(far.read(from_far));
        let (second, n) = std::future::poll_fn(|cx| {
            if let Poll::Ready(n) = far.as_mut().poll(cx) {
                return Poll::Ready((true, n));
            }
            near.as_mut().poll(cx).map(|n| (false, n))
        })
        .await;
        n.ok().filter(|n| *n > 0).map(|n| (second, n))
    }
}

#[test]
fn a_connection_may_be_cut_at_every_byte() {
    // More bytes than the handshake and the first requests take, in either direction.
    let places: Vec<(usize, bool)> = (1..420).step_by(7).flat_map(|n| [(n, true), (n, false)]).collect();
    let (mut world, shared) = world(11, false);
    let to = shared.addresses[0];
    let (at, cut) = (Arc::new(places), Arc::new(Mutex::new(0)));
    let (inside, count) = (at.clone(), cut.clone());
    world.node("cutter", 1, &Disk::new(1), move |_| cutter(to, inside.clone(), count.clone()));
    let address = SocketAddr::new(world.lookup("cutter"), PORT);
    let (all, seen) = (at.len(), cut.clone());
    with_client(&mut world, &shared, move |shared| {
        let seen = seen.clone();
        async move {
            let mut book = shared.book(CLIENT);
            book.peers.get_mut(&host(0)).expect("there").address = address;
            internode::publish_book(*INTERNODES, book).await;
            let mut well = 0;
            while well < 20 {
                let answer = ask(&shared, CLIENT, Peer { host: host(0), shard: 1 }, 50, millis(2000)).await;
                well = if answer.is_ok() && *seen.lock().expect("one thread") > all { well + 1 } else { 0 };
                rt::time::sleep(millis(20)).await;
            }
        }
    });
    world.run(Duration::from_secs(600));
    let ledger = shared.ledger();
    assert!(ledger.wrong.is_empty(), "{:?}", ledger.wrong);
    assert!(ledger.begun.values().all(|times| *times == 1), "something was done twice");
    assert!(ledger.not_done.iter().all(|id| !ledger.begun.contains_key(id)), "said to be not done, and done");
    assert!(*cut.lock().expect("one thread") > at.len() && !ledger.unknown.is_empty());
}
