//! Members that are started with older copies of their disks: they are refused, and the others keep
//! all acknowledged writes.

use rt::time::Duration;
use sim::cluster::Simulation;
use sim::cluster::nemesis::{Fault, PEACE};
use sim::cluster::shared::Plan;
use sim::cluster::trials::periodic;

/// The member whose disk is put back.
const MEMBER: usize = 2;

/// What ends with the member when it is killed.
#[derive(Clone, Copy, PartialEq)]
enum Killed {
    Member,
    All,
}

fn inflict(simulation: &mut Simulation, fault: Fault, node: usize) {
    simulation.nemesis.inflict(&mut simulation.world, fault, node, (node + 1) % 3);
}

/// A disk is copied while its node runs. Later the node is killed, and started with the copy. Then
/// it is started with the disk that it had when it was killed. Returns the refusal.
fn put_back(seed: u64, killed: Killed) -> Result<String, String> {
    let plan = Plan { schema_changes: seed.is_multiple_of(2), ..periodic(seed) };
    let mut simulation = Simulation::new(seed, plan, PEACE);
    simulation.form()?;
    simulation.run_for(Duration::from_millis(2000 + seed * 371))?;
    let older = simulation.nemesis.disks()[MEMBER].fork();
    simulation.run_for(Duration::from_millis(4500))?;
    for node in 0..simulation.nemesis.disks().len() {
        if node == MEMBER || killed == Killed::All {
            inflict(&mut simulation, Fault::Kill, node);
        }
    }
    let newest = simulation.nemesis.disks()[MEMBER].fork();
    simulation.nemesis.disks()[MEMBER].restore(&older);
    inflict(&mut simulation, Fault::Start, MEMBER);
    let Err(why) = simulation.run_for(Duration::from_secs(20)) else {
        return Err("the older copy is not refused".into());
    };
    simulation.shared.forgive();
    inflict(&mut simulation, Fault::Kill, MEMBER);
    simulation.nemesis.disks()[MEMBER].restore(&newest);
    inflict(&mut simulation, Fault::Start, MEMBER);
    simulation.verify(false)?;
    Ok(why)
}

fn check(killed: Killed) {
    for seed in 0..4 {
        let why = put_back(seed, killed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert!(why.contains("older copy of the node's directory"), "seed {seed}: {why}");
    }
}

#[test]
fn an_older_copy_of_the_present_run_is_refused() {
    check(Killed::Member);
}

/// The members that know better are started with it, and know from their own disks.
#[test]
fn an_older_copy_is_refused_when_all_members_start() {
    check(Killed::All);
}
