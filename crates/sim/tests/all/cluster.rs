//! Tests of simulated clusters, and of their checkers: each checker must find its deliberate
//! mistake ([`PlantedBug`]). `tests/seeds.rs` runs the trials, in which all promises must be kept.
//!
//! `TELL=1` prints every step.
use rt::sim::Unsynced;
use rt::time::Duration;
use sim::cluster::membership::MemberChanges;
use sim::cluster::nemesis::{CUTS, DATACENTERS, EXPIRY, Fault, FaultProfile, NETWORK, PEACE, POWER};
use sim::cluster::shared::{Plan, PlantedBug};
use sim::cluster::streamed_files;
use sim::cluster::trials::{Trial, batch, limiting, periodic, two_datacenters, with_room};
use sim::cluster::{Simulation, scenario};

/// With this seed, a read repaired a replica that was leaving, and the repair was missing on the
/// replica that replaced it.
#[test]
fn tablets_that_move_while_the_network_fails_cost_no_promise() {
    let trial = Trial::of("moves-network").expect("a trial of this name");
    let outcome = trial.run(222, Duration::from_secs(8));
    println!("{:?}", outcome.unwrap_or_else(|why| panic!("{why}")));
}

#[test]
fn the_same_seed_gives_the_same_cluster() {
    let once = || scenario(4, batch(0), POWER, Duration::from_secs(5));
    let first = once();
    #[allow(clippy::disallowed_methods, reason = "the second run has a thread of its own")]
    let second = std::thread::spawn(once).join().expect("ran");
    assert_eq!(first, second);
}

/// Once three nodes serve clients, any one of them may fail.
#[test]
fn a_node_that_has_joined_votes() {
    for seed in 0..5 {
        let mut simulation = Simulation::new(seed, periodic(0), PEACE);
        simulation.form().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        for (node, state) in simulation.shared().nodes.iter().enumerate() {
            assert!(state.voted.get(), "seed {seed}: node {node} served clients before it voted");
        }
    }
}

/// Runs scenarios with a deliberate mistake until a seed fails. Returns the error of the checker.
fn found(planted_bug: PlantedBug, profile: FaultProfile, seeds: u64) -> String {
    found_in(planted_bug, profile, periodic(0), seeds)
}

fn found_in(planted_bug: PlantedBug, profile: FaultProfile, plan: Plan, seeds: u64) -> String {
    for seed in 0..seeds {
        let plan = Plan { planted_bug, schema_changes: false, ..plan.clone() };
        if let Err(why) = scenario(seed, plan, profile, Duration::from_secs(12)) {
            return why;
        }
    }
    panic!("{planted_bug:?} was not found in {seeds} seeds");
}

#[test]
fn writes_that_a_majority_does_not_have_are_found() {
    let why = found(PlantedBug::WritesAtOne, NETWORK, 5);
    assert!(why.contains(" is broken: "), "{why}");
}

#[test]
fn reads_that_do_not_ask_a_majority_are_found() {
    let why = found(PlantedBug::ReadsAtOne, NETWORK, 5);
    assert!(why.contains(" is broken: "), "{why}");
}

/// A read that follows a read that was sent can miss a write that was acknowledged before it began.
#[test]
fn reads_that_follow_sent_reads_are_found() {
    let why = found(PlantedBug::FollowsSentReads, NETWORK, 10);
    assert!(why.contains(" is broken: "), "{why}");
}

#[test]
fn concurrent_equal_reads_are_coalesced() {
    let outcome = scenario(1, periodic(0), PEACE, Duration::from_secs(8)).unwrap_or_else(|why| panic!("{why}"));
    assert_ne!(outcome.coalesced, 0, "{outcome:?}");
}

#[test]
fn writes_that_one_datacenter_has_not_are_found() {
    let why = found_in(PlantedBug::OneDatacenter, DATACENTERS, two_datacenters(0), 5);
    assert!(why.contains(" is broken: "), "{why}");
}

#[test]
fn values_that_do_not_expire_are_found() {
    let why = found_in(PlantedBug::NoExpiry, EXPIRY, Plan { expiring: true, ..periodic(0) }, 2);
    assert!(why.contains("which has expired"), "{why}");
}

#[test]
fn rows_that_were_not_truncated_are_found() {
    let why = found_in(PlantedBug::NoTruncate, PEACE, Plan { truncating: true, ..periodic(0) }, 2);
    assert!(why.contains("which was truncated"), "{why}");
}

/// A counter update whose answer was lost has been applied.
#[test]
fn counts_that_are_sent_again_are_found() {
    let why = found_in(PlantedBug::CountsAgain, CUTS, periodic(2), 40);
    assert!(why.contains("a counter counts twice"), "{why}");
}

/// Reads repair what a few moves lose: most seeds notice nothing.
#[test]
fn tablets_that_move_without_their_data_are_found() {
    let why = found_in(PlantedBug::NoCopy, NETWORK, with_room(0), 40);
    assert!(why.contains(" is broken: "), "{why}");
}

/// In some seeds nodes leave, in some they are removed, and in some they lose their disks.
#[test]
fn members_change_in_each_way() {
    let trial = Trial::of("members-deaths").expect("a trial of this name");
    let changes = (0..6).map(|seed| {
        let outcome = trial.run(seed, Duration::from_secs(8)).unwrap_or_else(|why| panic!("{why}"));
        outcome.member_changes
    });
    let changes: Vec<MemberChanges> = changes.collect();
    assert!(changes.iter().any(|one| one.left > 0), "{changes:?}");
    assert!(changes.iter().any(|one| one.removed > 0), "{changes:?}");
    assert!(changes.iter().any(|one| one.lost > 0), "{changes:?}");
}

/// In each seed, nodes get more shards, and tablets move to these shards.
#[test]
fn tablets_move_between_shards() {
    let trial = Trial::of("shards-deaths").expect("a trial of this name");
    for seed in 0..3 {
        let outcome = trial.run(seed, Duration::from_secs(4)).unwrap_or_else(|why| panic!("{why}"));
        assert_ne!(outcome.handed_over, 0, "seed {seed}: {outcome:?}");
    }
}

/// The checker of streamed files finds one changed bit.
#[test]
fn a_moved_file_that_differs_is_found() {
    let mut simulation = Simulation::new(1, with_room(0), PEACE);
    simulation.form().unwrap_or_else(|why| panic!("{why}"));
    // Both replicas have the file only until the old one deletes its tablet.
    let moved = (0..3_000).find_map(|_| {
        simulation.run_for(Duration::from_millis(20)).unwrap_or_else(|why| panic!("{why}"));
        streamed_files::copies(simulation.nemesis.disks()).pop()
    });
    let (_, (node, path)) = moved.expect("a tablet moves within a minute");
    let disks = simulation.nemesis.disks();
    assert!(streamed_files::check(disks).is_ok());
    assert!(disks[node].flip_bit(&path, 0, 0), "the file has a byte");
    let why = streamed_files::check(disks).unwrap_err();
    assert!(why.contains("streamed_files_identical is broken"), "{why}");
}

/// Each node has one shard, and owns all partitions: it decides by what comes to itself.
#[test]
fn limits_that_each_node_applies_alone_are_found() {
    let plan = Plan { shards: vec![1, 1, 1], ..limiting(periodic(0)) };
    let why = found_in(PlantedBug::NoArrivalReports, PEACE, plan, 3);
    assert!(why.contains("rate_limit_bounds is broken"), "{why}");
}

/// The calm bounds do not find it: the others accept less because of this node.
#[test]
fn one_node_that_applies_no_limits_is_found() {
    let why = found_in(PlantedBug::OneUnlimited, NETWORK, limiting(periodic(0)), 3);
    assert!(why.contains("rate_limit_bounds is broken: Owner(0, "), "{why}");
}

#[test]
fn writes_that_are_refused_and_done_are_found() {
    let why = found_in(PlantedBug::RefusedIsDone, PEACE, limiting(periodic(0)), 2);
    assert!(why.contains("refused_is_not_done is broken"), "{why}");
}

/// A node is cut off while clients of others write.
#[test]
fn hints_that_are_not_kept_are_found() {
    let isolate = |planted_bug| {
        let mut simulation = Simulation::new(2, Plan { planted_bug, schema_changes: false, ..periodic(0) }, NETWORK);
        simulation.form()?;
        simulation.nemesis.inflict(&mut simulation.world, Fault::Isolate, 2, 0);
        simulation.run_for(Duration::from_secs(4))?;
        simulation.converge()
    };
    assert_eq!(isolate(PlantedBug::None), Ok(()));
    let why = isolate(PlantedBug::NoHints).unwrap_err();
    assert!(why.contains("replicas_converge is broken"), "{why}");
}

/// Nodes lose power one after the other, with all data that they have not synced. In this mode that
/// is all data since the last flush. Other replicas still have the counts of such a node. The
/// updates that the node applies afterwards, before a read has repaired it, must not replace these
/// counts.
#[test]
fn counters_keep_what_others_have_of_a_node_that_lost_its_power() {
    let lose = |planted_bug, seed| {
        let plan = Plan { counting: true, schema_changes: false, planted_bug, ..periodic(0) };
        let mut simulation = Simulation::new(seed, plan, POWER);
        simulation.set_unsynced(Unsynced::Lost);
        simulation.form()?;
        for node in 0..3 {
            simulation.run_for(Duration::from_secs(2))?;
            simulation.nemesis.inflict(&mut simulation.world, Fault::PowerLoss, node, (node + 1) % 3);
            simulation.run_for(Duration::from_millis(300))?;
            simulation.audit(Duration::from_secs(2))?;
        }
        Ok::<(), String>(())
    };
    for seed in 0..3 {
        assert_eq!(lose(PlantedBug::LazyLog, seed), Ok(()), "seed {seed}");
    }
    let why = lose(PlantedBug::CountsFromLoss, 0).unwrap_err();
    assert!(why.contains("acked_writes_survive is broken: counter"), "{why}");
}

/// All nodes lose their power at once, and all data that is not synced.
#[test]
fn a_log_that_is_not_synced_is_found() {
    let lose = |planted_bug| {
        let mut simulation = Simulation::new(3, Plan { planted_bug, ..batch(0) }, POWER);
        simulation.set_unsynced(Unsynced::Lost);
        simulation.form()?;
        simulation.run_for(Duration::from_secs(3))?;
        for node in 0..3 {
            simulation.nemesis.inflict(&mut simulation.world, Fault::PowerLoss, node, (node + 1) % 3);
        }
        simulation.run_for(Duration::from_secs(1))?;
        simulation.verify(false)
    };
    let fine = lose(PlantedBug::None);
    assert!(fine.is_ok(), "{fine:?}");
    let why = lose(PlantedBug::LazyLog).unwrap_err();
    // The error is about a row older than an acknowledged one, or a deleted row that returned.
    assert!(why.contains(" is broken: "), "{why}");
}
