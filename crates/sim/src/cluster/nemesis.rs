//! The faults of a simulated cluster. The world's seed chooses them from a fault profile, a list of
//! faults with weights.

use rand::Rng;
use rt::sim::{Disk, Latency, World};
use rt::time::Duration;
use std::ops::Range;

/// A fault, or the repair of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Two nodes cannot reach each other.
    Cut,
    /// One node cannot reach another, which can reach it.
    CutOneWay,
    /// A node is cut off from all others.
    Isolate,
    /// The network between a node and the others fails and returns again and again, for some
    /// seconds.
    Flap,
    /// Connections of a node break for some seconds, each in the middle of a message, in one
    /// direction or the other.
    Snip,
    /// Messages between two nodes are held back, and delivered together later.
    Hold,
    /// Messages between two nodes are slow.
    SlowLink,
    /// Datacenters cannot reach each other.
    CutDatacenters,
    /// A node's disk is slow.
    SlowDisk,
    /// A node's disk has little free space, until a repair.
    FullDisk,
    /// A node's clock jumps, by up to an hour in either direction.
    WrongClock,
    /// A node is paused for a while, like a machine that is suspended.
    StandStill,
    /// A process is killed. Its writes to files stay.
    Kill,
    /// A node's power fails. Its peers see their connections end.
    PowerLoss,
    /// A node's power fails. Its peers see nothing.
    SilentPowerLoss,
    /// A node stops and starts again.
    Restart,
    /// The network and all disks are repaired, and full disks get space.
    Mend,
    /// All nodes that are down start.
    Start,
}

/// Faults with their weights: how often each comes.
pub type FaultProfile = &'static [(Fault, u32)];

/// Faults of the network, the clocks and the pace of nodes. No node loses data.
pub const NETWORK: FaultProfile = &[
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

/// Connections that break at any byte: requests arrive in part, and answers are lost after the
/// request was executed. Nodes stay up and lose nothing.
pub const CUTS: FaultProfile = &[
    (Fault::Snip, 6),
    (Fault::SlowLink, 1),
    (Fault::Hold, 1),
    (Fault::WrongClock, 1),
    (Fault::StandStill, 1),
    (Fault::Mend, 2),
];

/// Whether no node loses data under this profile. Then hints alone make the replicas equal.
pub fn loses_nothing(profile: FaultProfile) -> bool {
    use Fault::{FullDisk, Kill, PowerLoss, Restart, SilentPowerLoss};
    profile.iter().all(|(fault, _)| !matches!(fault, FullDisk | Kill | PowerLoss | Restart | SilentPowerLoss))
}

/// Processes die and start, disks are slow, and the network fails. Data written to files is kept.
pub const DEATHS: FaultProfile = &[
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

/// Like [`DEATHS`], with power losses, which lose all data that was not synced. Only batch mode
/// survives this.
pub const POWER: FaultProfile = &[
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

/// The disks of running nodes become full for a while.
pub const FULL: FaultProfile = &[
    (Fault::FullDisk, 5),
    (Fault::Cut, 1),
    (Fault::Isolate, 1),
    (Fault::SlowDisk, 1),
    (Fault::Kill, 1),
    (Fault::Start, 3),
    (Fault::Mend, 3),
];

/// Like [`DEATHS`], with clocks that are right: for data with a TTL.
pub const EXPIRY: FaultProfile = &[
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

/// Two datacenters lose their connection, and nodes die.
pub const DATACENTERS: FaultProfile = &[
    (Fault::CutDatacenters, 4),
    (Fault::Cut, 1),
    (Fault::Isolate, 1),
    (Fault::SlowLink, 1),
    (Fault::StandStill, 1),
    (Fault::Kill, 2),
    (Fault::Start, 4),
    (Fault::Mend, 5),
];

/// Few faults and long pauses, in which steps that need all nodes succeed.
pub const PEACE: FaultProfile = &[
    (Fault::Cut, 1),
    (Fault::SlowLink, 1),
    (Fault::SlowDisk, 1),
    (Fault::Kill, 1),
    (Fault::Start, 4),
    (Fault::Mend, 8),
];

/// The longest time that a message takes on a slow link.
const SLOW: Duration = Duration::from_millis(900);
/// The longest time on any other link.
const USUAL: Duration = Duration::from_millis(10);
/// How long the network of a node flaps.
const FLAPPING: Duration = Duration::from_secs(4);
/// How long connections of a node break again and again.
const SNIPPING: Duration = Duration::from_secs(2);
/// A connection breaks before it has carried this number of further bytes.
const SNIPPED_WITHIN: u64 = 3000;
/// The free space of a disk that becomes full is below this, in bytes.
const LEFT: u64 = 200_000;
/// The size of a disk that is not full, in bytes.
const ROOMY: u64 = 1 << 40;
/// The error of a wrong clock is below this, in microseconds.
const WRONG: i64 = 3_600_000_000;
/// How long a node is paused, in milliseconds: from unnoticeable to longer than any request or
/// connection lasts.
const STILL: Range<u64> = 100..7000;

struct Flapping {
    node: usize,
    until: Duration,
    /// The time of the next change.
    next: Duration,
    whole: bool,
}

struct Snipping {
    node: usize,
    until: Duration,
    next: Duration,
}

/// The source of faults.
pub struct Nemesis {
    profile: FaultProfile,
    names: Vec<String>,
    /// The datacenter of each node.
    datacenters: Vec<usize>,
    disks: Vec<Disk>,
    flapping: Option<Flapping>,
    snipping: Option<Snipping>,
    /// Nodes that must stop. The driver asks them to.
    pub stopping: Vec<usize>,
    /// Nodes whose disks become full if the nodes are up. A node that cannot start breaks no
    /// promise.
    pub filling: Vec<usize>,
    /// The faults so far, each with its time in milliseconds and its node.
    pub done: Vec<(u128, Fault, usize)>,
}

impl Nemesis {
    /// A nemesis for these nodes.
    pub fn new(profile: FaultProfile, names: Vec<String>, datacenters: Vec<usize>, disks: Vec<Disk>) -> Nemesis {
        let (stopping, filling) = (Vec::new(), Vec::new());
        Nemesis {
            profile,
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

    /// Leaves little free space on the disk of a node.
    pub fn fill(&self, world: &mut World, node: usize) {
        self.disks[node].set_free(world.rng().gen_range(0..LEFT));
    }

    fn isolate(&self, world: &mut World, node: usize) {
        self.others(node).for_each(|other| world.partition(&self.names[node], other));
    }

    fn connect(&self, world: &mut World, node: usize) {
        self.others(node).for_each(|other| world.repair(&self.names[node], other));
    }

    /// Injects one random fault of the profile.
    pub fn strike(&mut self, world: &mut World) {
        let total: u32 = self.profile.iter().map(|(_, weight)| weight).sum();
        let mut choice = world.rng().gen_range(0..total);
        let fault = self.profile.iter().find(|(_, weight)| {
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

    /// Injects a fault into a node, or between two nodes.
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

    /// Continues faults that take time. The driver calls it every millisecond.
    pub fn advance(&mut self, world: &mut World) {
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

    /// Repairs all faults and clocks, and starts all nodes.
    pub fn heal(&mut self, world: &mut World) {
        // A node that has not begun to stop need not.
        self.stopping.clear();
        self.mend(world);
        self.start(world);
        self.names.iter().for_each(|name| world.set_clock_wrong(name, 0));
    }
}
