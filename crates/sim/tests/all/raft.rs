//! The Raft group on the simulated machine: crashes with loss of unsynced data, partitions (also
//! one-way), lost requests and answers, slow messages.
//!
//! The checker `raft_safety`: no two nodes apply different commands at the same index, and no
//! acknowledged command is lost. A barrier shows every command that was acknowledged before it. The
//! checker `schema_agrees`: all nodes end with the same state.
//!
//! `SEEDS=n` runs n seeds (default 3) from `FIRST_SEED=n` on.
use bytes::Bytes;
use cluster::raft::{self, CallFailed, Group, GroupError, Machine, Outcome, Transport};
use model::HostId;
use rand::Rng;
use rt::hash::{HashMap, HashSet};
use rt::sim::{Disk, World};
use rt::sync::{Deadline, mpsc, oneshot};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use uuid::Uuid;

const DIR: &str = "/node/raft";

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

fn host(n: usize) -> HostId {
    HostId(Uuid::from_u128(n as u128 + 1))
}

fn name(n: usize) -> String {
    format!("n{n}")
}

/// The history of all nodes together, against which each node is checked.
#[derive(Default)]
struct History {
    /// The commands in the order in which they were applied.
    applied: RefCell<Vec<u64>>,
    /// How many of the commands were acknowledged.
    acknowledged: Cell<usize>,
    next: Cell<u64>,
    /// Proposals: made, applied, with unknown outcome, refused.
    counts: Cell<[u64; 4]>,
    terms: RefCell<BTreeSet<u64>>,
}

impl History {
    fn count(&self, which: usize) {
        let mut counts = self.counts.get();
        counts[which] += 1;
        self.counts.set(counts);
    }

    /// `raft_safety`: the commands that one node has applied must be the same on all other nodes.
    fn check(&self, of: usize, list: &[u64]) {
        let mut applied = self.applied.borrow_mut();
        for (at, command) in list.iter().enumerate() {
            match applied.get(at) {
                Some(known) => assert_eq!(known, command, "node {of} applied another command at {at}"),
                None => applied.push(*command),
            }
        }
    }
}

/// The state of a node: commands, each made for a list of a certain length.
struct Ledger {
    node: usize,
    list: RefCell<Vec<u64>>,
    history: Rc<History>,
}

fn encode(length: u64, command: u64) -> Vec<u8> {
    [length.to_le_bytes(), command.to_le_bytes()].concat()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

impl Ledger {
    fn take(&self, command: &[u8]) -> Outcome {
        let (length, command) = (number(&command[..8]), number(&command[8..]));
        let mut list = self.list.borrow_mut();
        if length != list.len() as u64 {
            return Outcome::Stale;
        }
        list.push(command);
        self.history.check(self.node, &list);
        Outcome::Applied
    }

    fn restore(&self, snapshot: &[u8]) {
        *self.list.borrow_mut() = snapshot.chunks(8).map(number).collect();
        self.history.check(self.node, &self.list.borrow());
    }
}

impl Machine for Ledger {
    fn apply(&self, command: Vec<u8>) -> Boxed<'_, Result<Outcome, String>> {
        Box::pin(async move {
            rt::task::yield_now().await;
            let outcome = self.take(&command);
            rt::sim::trace(&format!("node {} has {} {outcome:?}", self.node, self.list.borrow().len()));
            Ok(outcome)
        })
    }

    fn snapshot(&self) -> Boxed<'static, Vec<u8>> {
        let snapshot = self.list.borrow().iter().flat_map(|command| command.to_le_bytes()).collect();
        Box::pin(std::future::ready(snapshot))
    }

    fn install(&self, snapshot: Vec<u8>) -> Boxed<'_, Result<(), String>> {
        Box::pin(async move {
            self.restore(&snapshot);
            Ok(())
        })
    }
}

struct Letter {
    from: HostId,
    message: Bytes,
    answer: oneshot::Sender<Result<Bytes, String>>,
}

/// The network between the nodes. It delays messages, and loses those that the test chooses.
#[derive(Default)]
struct Net {
    inboxes: RefCell<HashMap<HostId, mpsc::UnboundedSender<Letter>>>,
    /// Directions that are cut, from one node to another.
    cut: RefCell<HashSet<(HostId, HostId)>>,
    /// The number of lost messages per thousand.
    lost: Cell<u64>,
}

impl Net {
    fn loses(&self, from: HostId, to: HostId) -> bool {
        self.cut.borrow().contains(&(from, to)) || rt::random::below(1000) < self.lost.get()
    }
}

struct Way {
    net: Rc<Net>,
    own: HostId,
}

impl Transport for Way {
    fn call(&self, to: HostId, message: Bytes, limit: Duration) -> Boxed<'static, Result<Bytes, CallFailed>> {
        let (net, from) = (self.net.clone(), self.own);
        Box::pin(async move {
            let failed = |why: &str, may_have_been_done| CallFailed { why: why.to_owned(), may_have_been_done };
            let delay = || rt::time::sleep(Duration::from_millis(1 + rt::random::below(8)));
            let asked = async {
                delay().await;
                if net.loses(from, to) {
                    return std::future::pending().await;
                }
                let (answer, answered) = oneshot::channel();
                let inbox = net.inboxes.borrow().get(&to).cloned();
                let letter = Letter { from, message, answer };
                if inbox.is_none_or(|inbox| inbox.send(letter).is_err()) {
                    return Err(failed("connection refused", false));
                }
                let Ok(answer) = answered.await else { return Err(failed("connection reset", true)) };
                delay().await;
                if net.loses(to, from) {
                    return std::future::pending().await;
                }
                answer.map_err(|why| failed(&why, true))
            };
            rt::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(failed("no answer in time", true)))
        })
    }
}

struct Cluster {
    net: Rc<Net>,
    history: Rc<History>,
    nodes: usize,
    /// The groups that run, by node.
    groups: RefCell<HashMap<usize, Rc<Group>>>,
    /// The number of commands of each node.
    lengths: RefCell<HashMap<usize, usize>>,
    /// Whether clients have stopped making changes.
    quiet: Cell<bool>,
    /// The pause of a client between two changes is below this, in milliseconds.
    pause: Cell<u64>,
    /// Whether a disk may be full, so that changes may be refused.
    full: Cell<bool>,
}

impl Cluster {
    fn new(nodes: usize) -> Rc<Cluster> {
        Rc::new(Cluster {
            net: Rc::default(),
            history: Rc::default(),
            nodes,
            groups: RefCell::default(),
            lengths: RefCell::default(),
            quiet: Cell::new(false),
            pause: Cell::new(120),
            full: Cell::new(false),
        })
    }

    /// Runs an incarnation of a node.
    async fn run(self: Rc<Self>, node: usize) {
        rt::fs::create_dir_all(Path::new("/node")).await.expect("made");
        rt::fs::sync_dir(Path::new("/")).await.expect("synced");
        let dir = Path::new(DIR);
        let opened = match node {
            0 => raft::open(dir, host(0), Vec::new()).await,
            _ => raft::open_to_join(dir, host(node)).await,
        };
        let opened = opened.unwrap_or_else(|error| panic!("node {node}: {error}"));
        let ledger = Rc::new(Ledger { node, list: RefCell::default(), history: self.history.clone() });
        if let Some(snapshot) = &opened.snapshot {
            ledger.restore(snapshot);
        }
        for command in &opened.commands {
            ledger.take(command);
        }
        let group = Group::start(opened, dir.to_path_buf(), "sim", ledger.clone()).await;
        let group = group.unwrap_or_else(|error| panic!("node {node}: {error}"));
        let (sender, mut inbox) = mpsc::unbounded_channel::<Letter>();
        self.net.inboxes.borrow_mut().insert(host(node), sender);
        group.connect(Rc::new(Way { net: self.net.clone(), own: host(node) }));
        self.groups.borrow_mut().insert(node, group.clone());
        let answering = group.clone();
        rt::task::spawn(async move {
            while let Some(Letter { from, message, answer }) = inbox.recv().await {
                let group = answering.clone();
                rt::task::spawn(async move {
                    // The sender of the request may be gone.
                    let _ = answer.send(group.handle(from, message).await);
                })
                .detach();
            }
        })
        .detach();
        if node == 0 {
            rt::task::spawn(self.clone().gather(group.clone())).detach();
        }
        self.client(node, group, ledger).await;
    }

    /// Adds all nodes to the group, as voters.
    async fn gather(self: Rc<Self>, group: Rc<Group>) {
        let all: BTreeSet<HostId> = (0..self.nodes).map(host).collect();
        while self.net.inboxes.borrow().len() < self.nodes {
            rt::time::sleep(Duration::from_millis(20)).await;
        }
        while group.voters() != all {
            for other in &all {
                // The caller retries it.
                let _ = group.add(*other).await;
            }
            if group.is_leader() && all.iter().all(|host| group.has_caught_up(*host)) {
                let _ = group.set_voters(&all).await;
            }
            rt::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes changes, and checks the state.
    async fn client(self: Rc<Self>, node: usize, group: Rc<Group>, ledger: Rc<Ledger>) {
        let history = self.history.clone();
        loop {
            rt::time::sleep(Duration::from_millis(self.pause.get() / 20 + rt::random::below(self.pause.get()))).await;
            self.lengths.borrow_mut().insert(node, ledger.list.borrow().len());
            history.terms.borrow_mut().insert(group.term());
            if self.quiet.get() {
                continue;
            }
            let until = || Deadline::after(Duration::from_millis(300 + rt::random::below(3000)));
            let known = history.acknowledged.get();
            if group.barrier(until()).await.is_err() {
                continue;
            }
            let length = ledger.list.borrow().len();
            assert!(length >= known, "node {node}: a barrier showed {length} of {known} acknowledged commands");
            let command = history.next.get() + 1;
            history.next.set(command);
            history.count(0);
            match group.propose(encode(length as u64, command), until()).await {
                Ok(proposed) if proposed.outcome == Outcome::Applied => {
                    history.count(1);
                    let list = ledger.list.borrow();
                    assert_eq!(list[length], command, "node {node}: acknowledged and not there");
                    history.acknowledged.set(history.acknowledged.get().max(length + 1));
                }
                Ok(proposed) => assert_eq!(proposed.outcome, Outcome::Stale),
                Err(GroupError::Unknown(_)) => history.count(2),
                Err(GroupError::NoMajority { .. }) => history.count(3),
                Err(GroupError::NoSpace(_)) if self.full.get() => history.count(3),
                Err(error) => panic!("node {node}: {error}"),
            }
        }
    }
}

fn start(world: &mut World, cluster: &Rc<Cluster>) {
    (0..cluster.nodes).for_each(|node| drop(start_one(world, cluster, node)));
}

fn start_one(world: &mut World, cluster: &Rc<Cluster>, node: usize) -> Disk {
    let disk = Disk::new(world.seed() * 10 + node as u64);
    let shared = cluster.clone();
    world.node(&name(node), 1, &disk, move |_| shared.clone().run(node));
    disk
}

/// Simulates until all nodes are voters.
fn gathered(world: &mut World, cluster: &Cluster) {
    let all: BTreeSet<HostId> = (0..cluster.nodes).map(host).collect();
    for _ in 0..200 {
        world.run_for(Duration::from_millis(100));
        let groups = cluster.groups.borrow();
        if groups.len() == cluster.nodes && groups.values().all(|group| group.voters() == all) {
            return;
        }
    }
    panic!("the nodes did not find together (seed {})", world.seed());
}

fn seeds() -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = setting("FIRST_SEED").unwrap_or(0);
    first..first + setting("SEEDS").unwrap_or(3)
}

/// Injects a fault.
fn disturb(world: &mut World, cluster: &Cluster) {
    let node = world.rng().gen_range(0..cluster.nodes);
    let other = (node + world.rng().gen_range(1..cluster.nodes)) % cluster.nodes;
    let (a, b) = (host(node), host(other));
    match world.rng().gen_range(0..10) {
        0 => {
            cluster.net.cut.borrow_mut().insert((a, b));
        }
        1 => cluster.net.cut.borrow_mut().extend([(a, b), (b, a)]),
        2 => {
            // Isolates the node.
            let others = (0..cluster.nodes).map(host).filter(|host| *host != a);
            let ways: Vec<_> = others.flat_map(|other| [(a, other), (other, a)]).collect();
            cluster.net.cut.borrow_mut().extend(ways);
        }
        3 | 4 => cluster.net.cut.borrow_mut().clear(),
        5 => cluster.net.lost.set(world.rng().gen_range(0..100)),
        6 | 7 => world.crash(&name(node)),
        8 => world.kill(&name(node)),
        _ => {
            for node in 0..cluster.nodes {
                if !world.is_running(&name(node)) {
                    world.bounce(&name(node));
                }
            }
        }
    }
}

/// A run with faults, and its end without. Returns the trace and the counters.
fn run(seed: u64, nodes: usize, time: Duration) -> (u64, [u64; 4]) {
    let mut world = World::new(seed);
    let cluster = Cluster::new(nodes);
    start(&mut world, &cluster);
    gathered(&mut world, &cluster);
    let until = world.elapsed() + time;
    while world.elapsed() < until {
        let pause = world.rng().gen_range(20..1500);
        world.run_for(Duration::from_millis(pause));
        disturb(&mut world, &cluster);
    }
    cluster.net.cut.borrow_mut().clear();
    cluster.net.lost.set(0);
    for node in 0..nodes {
        if !world.is_running(&name(node)) {
            world.bounce(&name(node));
        }
    }
    world.run_for(Duration::from_secs(12));
    let before = cluster.history.acknowledged.get();
    world.run_for(Duration::from_secs(3));
    let after = cluster.history.acknowledged.get();
    assert!(after > before, "no progress after the repair (seed {seed})");
    cluster.quiet.set(true);
    world.run_for(Duration::from_secs(5));
    let history = &cluster.history;
    let applied = history.applied.borrow();
    assert!(applied.len() >= history.acknowledged.get(), "something acknowledged was lost (seed {seed})");
    let unique: BTreeSet<u64> = applied.iter().copied().collect();
    assert_eq!(unique.len(), applied.len(), "a command was applied twice (seed {seed})");
    for (node, length) in &*cluster.lengths.borrow() {
        assert_eq!(*length, applied.len(), "schema_agrees: node {node} (seed {seed})");
    }
    let counts = history.counts.get();
    drop(applied);
    cluster.groups.borrow_mut().clear();
    cluster.net.inboxes.borrow_mut().clear();
    (world.trace_hash(), counts)
}

#[test]
fn raft_safety_and_schema_agrees() {
    let mut sum = [0; 4];
    let seeds = seeds();
    let several = seeds.end - seeds.start > 1;
    for seed in seeds {
        let nodes = [3, 3, 5][seed as usize % 3];
        let (_, counts) = run(seed, nodes, Duration::from_secs(25));
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!("proposed, applied, unknown, refused: {sum:?}");
    assert!(sum[1] > 100 && (sum[2] > 0 || !several), "there was no trouble, or nothing else: {sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let once = || run(77, 3, Duration::from_secs(10));
    assert_eq!(once(), once());
}

/// A node that flaps does not depose a working leader.
#[test]
fn a_flapping_node_does_not_depose_the_leader() {
    let mut world = World::new(5);
    let cluster = Cluster::new(3);
    start(&mut world, &cluster);
    gathered(&mut world, &cluster);
    world.run_for(Duration::from_secs(2));
    let leader = cluster.groups.borrow()[&0].leader().expect("there is one");
    let flapping = (0..3).find(|node| host(*node) != leader).expect("not all lead");
    cluster.history.terms.borrow_mut().clear();
    for round in 0..10 {
        for other in (0..3).filter(|other| *other != flapping) {
            cluster.net.cut.borrow_mut().extend([(host(flapping), host(other)), (host(other), host(flapping))]);
        }
        world.run_for(Duration::from_millis(3000 + round * 300));
        cluster.net.cut.borrow_mut().clear();
        world.run_for(Duration::from_millis(200 + round * 200));
    }
    assert_eq!(cluster.groups.borrow()[&0].leader(), Some(leader));
    assert_eq!(cluster.history.terms.borrow().len(), 1, "elections: {:?}", cluster.history.terms.borrow());
    cluster.groups.borrow_mut().clear();
    cluster.net.inboxes.borrow_mut().clear();
}

/// The leader fails. Another one is elected within seconds, and a leader that is cut off refuses
/// changes with a clear error.
#[test]
fn a_lost_leader_is_replaced() {
    for seed in 0..3 {
        let mut world = World::new(100 + seed);
        let cluster = Cluster::new(3);
        start(&mut world, &cluster);
        gathered(&mut world, &cluster);
        world.run_for(Duration::from_secs(2));
        let leader = cluster.groups.borrow()[&0].leader().expect("there is one");
        let leading = (0..3).find(|node| host(*node) == leader).expect("one of them");
        let before = cluster.history.acknowledged.get();
        cluster.groups.borrow_mut().remove(&leading);
        world.crash(&name(leading));
        world.run_for(Duration::from_secs(5));
        assert!(cluster.history.acknowledged.get() > before, "no new leader within five seconds (seed {seed})");
        world.bounce(&name(leading));
        world.run_for(Duration::from_secs(5));
        let applied = cluster.history.applied.borrow().len();
        let lengths = cluster.lengths.borrow();
        assert!(lengths[&leading] + 20 > applied, "the one that came back learns: {} of {applied}", lengths[&leading]);
        drop(lengths);
        cluster.groups.borrow_mut().clear();
        cluster.net.inboxes.borrow_mut().clear();
    }
}

/// The entries of many changes keep the others from electing a leader as heartbeats do.
#[test]
fn a_leader_that_resigns_is_replaced_beside_many_changes() {
    let (mut world, cluster) = (World::new(200), Cluster::new(3));
    cluster.pause.set(5);
    start(&mut world, &cluster);
    gathered(&mut world, &cluster);
    let leader = || cluster.groups.borrow()[&0].leader().and_then(|id| (0..3).find(|node| host(*node) == id));
    let first = leader().expect("there is one");
    cluster.groups.borrow()[&first].set_resigning(true);
    world.run_for(Duration::from_secs(5));
    assert!(leader().is_some_and(|next| next != first), "node {first} leads on");
    cluster.groups.borrow_mut().clear();
    cluster.net.inboxes.borrow_mut().clear();
}

/// The number of commands after which a snapshot exists.
const MANY: usize = 340;

/// A cluster of two nodes, of which the first has started alone, with short pauses between
/// commands.
fn begin(seed: u64) -> (World, Rc<Cluster>, Disk) {
    let mut world = World::new(seed);
    let cluster = Cluster::new(2);
    cluster.pause.set(2);
    let disk = start_one(&mut world, &cluster, 0);
    (world, cluster, disk)
}

fn run_until(world: &mut World, what: &str, is_so: impl Fn(&World) -> bool) {
    let until = world.elapsed() + Duration::from_secs(60);
    while !is_so(world) {
        world.run_for(Duration::from_millis(1));
        assert!(world.elapsed() < until, "not within a minute: {what} (seed {})", world.seed());
    }
}

/// The first node decides more commands than a log keeps, so a node that joins gets a snapshot.
fn much_is_decided(world: &mut World, cluster: &Cluster) {
    run_until(world, "a node alone decides", |_| cluster.history.acknowledged.get() >= MANY);
    cluster.pause.set(120);
}

/// Checks that both nodes have the same commands, and continue to get the same.
fn agree(mut world: World, cluster: &Cluster) {
    let before = cluster.history.acknowledged.get();
    gathered(&mut world, cluster);
    world.run_for(Duration::from_secs(3));
    assert!(cluster.history.acknowledged.get() > before, "no progress (seed {})", world.seed());
    cluster.quiet.set(true);
    world.run_for(Duration::from_secs(2));
    let applied = cluster.history.applied.borrow().len();
    let lengths = cluster.lengths.borrow();
    assert_eq!((lengths[&0], lengths[&1]), (applied, applied), "schema_agrees (seed {})", world.seed());
    drop(lengths);
    cluster.groups.borrow_mut().clear();
    cluster.net.inboxes.borrow_mut().clear();
}

/// The power of a node fails at each write while it receives a snapshot. The log that the snapshot
/// replaces is kept until the snapshot is durable.
#[test]
fn a_snapshot_is_durable_before_the_log_it_replaces_is_removed() {
    for at in 1.. {
        let (mut world, cluster, _) = begin(at);
        much_is_decided(&mut world, &cluster);
        let disk = start_one(&mut world, &cluster, 1);
        disk.power_loss_at_write(at);
        let has_all = || cluster.lengths.borrow().get(&1).is_some_and(|length| *length >= MANY);
        run_until(&mut world, "the node learns or dies", |world| has_all() || !world.is_running(&name(1)));
        let has_died = !world.is_running(&name(1));
        if has_died {
            cluster.groups.borrow_mut().remove(&1);
            world.bounce(&name(1));
        }
        disk.no_power_loss();
        agree(world, &cluster);
        if !has_died {
            assert!(at > 12, "a snapshot was taken in {at} writes");
            return;
        }
    }
}

/// The disk fills up while a snapshot is written. The group keeps working, and the snapshot is made
/// when there is space again.
#[test]
fn a_disk_that_fills_up_during_a_snapshot_ends_nothing() {
    for node in 0..2 {
        let (mut world, cluster, mut disk) = begin(20 + node as u64);
        if node == 1 {
            much_is_decided(&mut world, &cluster);
            disk = start_one(&mut world, &cluster, 1);
        }
        let snapshot = format!("{DIR}/snapshot");
        let temporary = format!("{snapshot}.tmp");
        let writes_one = || disk.files().iter().any(|(path, _)| path == Path::new(&temporary));
        // The first node begins the history.
        let begun = || node == 1 || cluster.history.acknowledged.get() > 0;
        let (min, max) = (Duration::from_millis(2), Duration::from_millis(5));
        disk.set_latency(rt::sim::Latency { min, max, slow_permille: 1000 });
        run_until(&mut world, "a snapshot is written", |_| begun() && writes_one());
        cluster.full.set(true);
        disk.set_free(0);
        world.run_for(Duration::from_secs(5));
        assert!(!writes_one(), "node {node}: what cannot be written is taken away");
        let before = disk.contents(&snapshot);
        disk.set_capacity(1 << 40);
        disk.set_latency(Default::default());
        run_until(&mut world, "a snapshot is made", |_| disk.contents(&snapshot) != before);
        cluster.full.set(false);
        cluster.pause.set(120);
        if node == 0 {
            start_one(&mut world, &cluster, 1);
        }
        agree(world, &cluster);
    }
}
