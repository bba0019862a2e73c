//! What goes wrong in a simulated cluster, chosen by the world's seed out of a regime: a list of faults with weights.

use rand::Rng;
use rt::sim::{Disk, Latency, World};
use rt::time::Duration;
use std::ops::Range;

/// Something that goes wrong, or is mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Two nodes do not reach each other.
    Cut,
    /// One does not reach another, which reaches it.
    CutOneWay,
    /// A node is cut off from all others.
    Isolate,
    /// The network between a node and the others comes and goes for some seconds.
    Flap,
    /// Connections of a node end for some seconds, each in the middle of what goes over it, in one direction or the other.
    Snip,
    /// Messages between two nodes are kept back, and all come later.
    Hold,
    /// Messages between two nodes take long.
    SlowLink,
    /// Datacenters do not reach each other.
    CutDatacenters,
    /// A node's disk is slow.
    SlowDisk,
    /// A node's disk has room for little more, until it is mended.
    FullDisk,
    /// A node's clock jumps, by up to an hour in either direction.
    WrongClock,
    /// A node stands still for a while, as when its machine is paused.
    StandStill,
    /// A process is killed: what it wrote stays.
    Kill,
    /// A node's power fails, and others see their connections end.
    PowerLoss,
    /// A node's power fails, and others see nothing.
    SilentPowerLoss,
    /// A node stops in order and starts again.
    Restart,
    /// All of the network is well again, and all disks are fast and have room.
    Mend,
    /// All nodes that are down start.
    Start,
}

/// Faults and how often they come.
pub type Regime = &'static [(Fault, u32)];

/// Only the network, the clocks and the pace of nodes: nothing that any node knows is ever lost.
pub const NETWORK: Regime = &[
    (Fault::Cut, 3),
    (Fault::CutOneWay, 2),
    (Fault::Isolate, 2),
    (Fault::Flap, 1),
    (Fault::Hold, 1),
    (Fault::SlowLink, 1),
    (Fault::WrongClock, 1),
    (Fault::StandStill, 2),
    (Fault::Mend, 6),
];

/// Connections that end at any byte: requests that arrive in part, answers that are lost after what was asked was done. Nodes stay, and so does
/// all they know.
pub const CUTS: Regime = &[
    (Fault::Snip, 6),
    (Fault::SlowLink, 1),
    (Fault::Hold, 1),
    (Fault::WrongClock, 1),
    (Fault::StandStill, 1),
    (Fault::Mend, 2),
];

/// Whether no node loses anything that it knew: hints alone make copies the same then.
pub fn loses_nothing(regime: Regime) -> bool {
    use Fault::{FullDisk, Kill, PowerLoss, Restart, SilentPowerLoss};
    regime.iter().all(|(fault, _)| !matches!(fault, FullDisk | Kill | PowerLoss | Restart | SilentPowerLoss))
}

/// Processes die and start, disks are slow, and the network fails too. Nothing that was written is lost.
pub const DEATHS: Regime = &[
    (Fault::Cut, 1),
    (Fault::CutOneWay, 1),
    (Fault::Isolate, 1),
    (Fault::Hold, 1),
    (Fault::SlowDisk, 1),
    (Fault::WrongClock, 1),
    (Fault::StandStill, 2),
    (Fault::Kill, 4),
    (Fault::Restart, 2),
    (Fault::Start, 5),
    (Fault::Mend, 4),
];

/// As [`DEATHS`], and nodes lose their power with all that was not synced: only batch mode stands this.
pub const POWER: Regime = &[
    (Fault::Cut, 1),
    (Fault::CutOneWay, 1),
    (Fault::Isolate, 1),
    (Fault::Flap, 1),
    (Fault::SlowLink, 1),
    (Fault::SlowDisk, 1),
    (Fault::WrongClock, 1),
    (Fault::StandStill, 1),
    (Fault::Kill, 1),
    (Fault::PowerLoss, 3),
    (Fault::SilentPowerLoss, 2),
    (Fault::Restart, 1),
    (Fault::Start, 6),
    (Fault::Mend, 4),
];

/// The disks of nodes that run are full for a while.
pub const FULL: Regime = &[
    (Fault::FullDisk, 5),
    (Fault::Cut, 1),
    (Fault::Isolate, 1),
    (Fault::SlowDisk, 1),
    (Fault::Kill, 1),
    (Fault::Start, 3),
    (Fault::Mend, 3),
];

/// As [`DEATHS`], with clocks that are right: for what depends on the time.
pub const EXPIRY: Regime = &[
    (Fault::Cut, 2),
    (Fault::CutOneWay, 1),
    (Fault::Isolate, 1),
    (Fault::SlowLink, 1),
    (Fault::SlowDisk, 1),
    (Fault::StandStill, 1),
    (Fault::Kill, 3),
    (Fault::Restart, 1),
    (Fault::Start, 5),
    (Fault::Mend, 4),
];

/// Two datacenters that lose each other, and nodes that die.
pub const DATACENTERS: Regime = &[
    (Fault::CutDatacenters, 4),
    (Fault::Cut, 1),
    (Fault::Isolate, 1),
    (Fault::SlowLink, 1),
    (Fault::StandStill, 1),
    (Fault::Kill, 2),
    (Fault::Start, 4),
    (Fault::Mend, 5),
];

/// Long times of peace, in which what needs all nodes can be done.
pub const PEACE: Regime = &[
    (Fault::Cut, 1),
    (Fault::SlowLink, 1),
    (Fault::SlowDisk, 1),
    (Fault::Kill, 1),
    (Fault::Start, 4),
    (Fault::Mend, 8),
];

/// The longest time that a message takes on a slow link.
const SLOW: Duration = Duration::from_millis(900);
/// On any other.
const USUAL: Duration = Duration::from_millis(10);
/// How long a network comes and goes.
const FLAPPING: Duration = Duration::from_secs(4);
/// How long connections of a node end again and again.
const SNIPPING: Duration = Duration::from_secs(2);
/// A connection ends before it has carried so many bytes more.
const SNIPPED_WITHIN: u64 = 3000;
/// What is left of a disk that becomes full, in bytes, at most.
const LEFT: u64 = 200_000;
/// The size of a disk that is not full, in bytes.
const ROOMY: u64 = 1 << 40;
/// Clocks are wrong by less than this, in microseconds.
const WRONG: i64 = 3_600_000_000;
/// How long nodes stand still, in milliseconds: from what nobody notices to more than any request or connection lives for.
const STILL: Range<u64> = 100..7000;

struct Flapping {
    node: usize,
    until: Duration,
    /// When it changes next, and to what.
    next: Duration,
    whole: bool,
}

struct Snipping {
    node: usize,
    until: Duration,
    next: Duration,
}

/// Who does it.
pub struct Nemesis {
    regime: Regime,
    names: Vec<String>,
    /// The datacenter of each.
    datacenters: Vec<usize>,
    disks: Vec<Disk>,
    flapping: Option<Flapping>,
    snipping: Option<Snipping>,
    /// Nodes that are to stop in order.
    pub stopping: Vec<usize>,
    /// Nodes whose disks become full, if they serve: one that cannot start breaks no promise.
    pub filling: Vec<usize>,
    /// What was done, with the time in milliseconds.
    pub done: Vec<(u128, Fault, usize)>,
}

impl Nemesis {
    /// For these nodes.
    pub fn new(regime: Regime, names: Vec<String>, datacenters: Vec<usize>, disks: Vec<Disk>) -> Nemesis {
        let (stopping, filling) = (Vec::new(), Vec::new());
        Nemesis {
            regime,
            names,
            datacenters,
            disks,
            flapping: None,
            snipping: None,
            stopping,
            filling,
            done: Vec::new(),
        }
    }

    /// The disks of the nodes.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    fn others(&self, node: usize) -> impl Iterator<Item = &String> {
        self.names.iter().enumerate().filter(move |(other, _)| *other != node).map(|(_, name)| name)
    }

    fn cut_datacenters(&self, world: &mut World) {
        for (node, own) in self.datacenters.iter().enumerate() {
            for (other, _) in self.datacenters.iter().enumerate().filter(|(_, far)| own < *far) {
                world.partition(&self.names[node], &self.names[other]);
            }
        }
    }

    /// A node's disk has room for little more.
    pub fn fill(&self, world: &mut World, node: usize) {
        self.disks[node].set_free(world.rng().gen_range(0..LEFT));
    }

    fn isolate(&self, world: &mut World, node: usize) {
        self.others(node).for_each(|other| world.partition(&self.names[node], other));
    }

    fn connect(&self, world: &mut World, node: usize) {
        self.others(node).for_each(|other| world.repair(&self.names[node], other));
    }

    /// Does one thing.
    pub fn strike(&mut self, world: &mut World) {
        let total: u32 = self.regime.iter().map(|(_, weight)| weight).sum();
        let mut choice = world.rng().gen_range(0..total);
        let fault = self.regime.iter().find(|(_, weight)| {
            let hit = choice < *weight;
            choice = choice.saturating_sub(*weight);
            hit
        });
        let Some((fault, _)) = fault else { return };
        let nodes = self.names.len();
        let node = world.rng().gen_range(0..nodes);
        let other = (node + world.rng().gen_range(1..nodes)) % nodes;
        self.inflict(world, *fault, node, other);
    }

    /// Has one fault befall a node, or what is between two.
    pub fn inflict(&mut self, world: &mut World, fault: Fault, node: usize, other: usize) {
        let (own, far) = (self.names[node].clone(), self.names[other].clone());
        self.done.push((world.elapsed().as_millis(), fault, node));
        match fault {
            Fault::Cut => world.partition(&own, &far),
            Fault::CutOneWay => world.partition_oneway(&own, &far),
            Fault::Isolate => self.isolate(world, node),
            Fault::Flap => {
                let now = world.elapsed();
                self.flapping = Some(Flapping { node, until: now + FLAPPING, next: now, whole: true });
            }
            Fault::Snip => {
                let now = world.elapsed();
                self.snipping = Some(Snipping { node, until: now + SNIPPING, next: now });
            }
            Fault::Hold => world.hold(&own, &far),
            Fault::SlowLink => world.slow_link(&own, &far, SLOW),
            Fault::CutDatacenters => self.cut_datacenters(world),
            Fault::FullDisk => self.filling.push(node),
            Fault::SlowDisk => {
                let (min, max) = (Duration::from_millis(1), Duration::from_millis(60));
                self.disks[node].set_latency(Latency { min, max, slow_permille: 500 });
            }
            Fault::WrongClock => {
                let wrong = world.rng().gen_range(-WRONG..WRONG);
                world.set_clock_wrong(&own, wrong);
            }
            Fault::StandStill => {
                let millis = world.rng().gen_range(STILL);
                world.pause_node(&own, Duration::from_millis(millis));
            }
            Fault::Kill => world.kill(&own),
            Fault::PowerLoss => world.crash(&own),
            Fault::SilentPowerLoss => {
                self.isolate(world, node);
                world.crash(&own);
            }
            Fault::Restart => self.stopping.push(node),
            Fault::Mend => self.mend(world),
            Fault::Start => self.start(world),
        }
    }

    /// To be called often: what takes time goes on.
    pub fn go_on(&mut self, world: &mut World) {
        self.flap(world);
        self.snip(world);
    }

    fn snip(&mut self, world: &mut World) {
        let now = world.elapsed();
        let Some(snipping) = self.snipping.as_mut().filter(|snipping| snipping.next <= now) else { return };
        if snipping.until <= now {
            self.snipping = None;
            return world.cut_no_more();
        }
        snipping.next = now + Duration::from_millis(world.rng().gen_range(5..150));
        let node = snipping.node;
        let other = (node + world.rng().gen_range(1..self.names.len())) % self.names.len();
        let (own, far) = (&self.names[node], &self.names[other]);
        let (from, to) = if world.rng().gen_bool(0.5) { (own, far) } else { (far, own) };
        let bytes = world.rng().gen_range(0..SNIPPED_WITHIN);
        world.cut_connection_after(from, to, bytes);
    }

    fn flap(&mut self, world: &mut World) {
        let now = world.elapsed();
        let Some(flapping) = &mut self.flapping else { return };
        if now < flapping.next {
            return;
        }
        let node = flapping.node;
        flapping.whole = !flapping.whole;
        flapping.next = now + Duration::from_millis(world.rng().gen_range(20..700));
        let (whole, over) = (flapping.whole, now >= flapping.until);
        if over {
            self.flapping = None;
        }
        if whole || over { self.connect(world, node) } else { self.isolate(world, node) }
    }

    fn start(&mut self, world: &mut World) {
        for (node, name) in self.names.iter().enumerate() {
            if !world.is_running(name) {
                self.connect(world, node);
                self.disks[node].set_capacity(ROOMY);
                world.bounce(name);
            }
        }
    }

    fn mend(&mut self, world: &mut World) {
        (self.flapping, self.snipping) = (None, None);
        world.cut_no_more();
        world.resume_all();
        self.filling.clear();
        for (node, name) in self.names.iter().enumerate() {
            for other in self.others(node) {
                world.release(name, other);
                world.repair(name, other);
                world.slow_link(name, other, USUAL);
            }
            self.disks[node].set_latency(Latency::default());
            self.disks[node].set_capacity(ROOMY);
        }
    }

    /// All is well from now on; clocks are right.
    pub fn heal(&mut self, world: &mut World) {
        // Who has not begun to stop need not.
        self.stopping.clear();
        self.mend(world);
        self.start(world);
        self.names.iter().for_each(|name| world.set_clock_wrong(name, 0));
    }
}
