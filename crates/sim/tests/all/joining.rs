//! A node whose disk fails while it joins a cluster. Its start ends, with an error that names the
//! reason: it does not wait for a Raft group that has ended.

use rt::ShardId;
use rt::sim::{Disk, Refusal, World};
use rt::time::Duration;
use server::membership::ClusterConfig;
use server::stack::{self, StackConfig};
use sim::layers::LAYERS;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

const PORT: u16 = 7000;
/// Memory of each shard, in bytes.
const MEMORY: usize = 8 << 20;
/// A start that takes longer, in simulated time, is stuck. A node may need minutes to give up a
/// change that it cannot apply.
const LONGEST_START: Duration = Duration::from_secs(900);
/// The number of operations between two attempts.
const STEP: usize = 2;

/// The result of a start. `None` until the start has ended.
type Started = Rc<RefCell<Option<Result<(), String>>>>;

fn config(address: SocketAddr, seeds: Vec<SocketAddr>) -> StackConfig {
    let mut config = StackConfig {
        cluster: Some(ClusterConfig {
            seeds: seeds.into(),
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            internode: Default::default(),
            tls: None,
            settings: Default::default(),
        }),
        segment_size: 32 << 10,
        log_size_limit: 256 << 10,
        disk_reserve: 64 << 10,
        ..StackConfig::new("/node", "sim", address.ip(), MEMORY)
    };
    config.info.storage_port = PORT;
    config
}

/// Starts a node, which then runs until the world ends.
fn start(world: &mut World, name: &str, disk: &Disk, seeds: Vec<SocketAddr>) -> Started {
    let (started, address) = (Started::default(), SocketAddr::new(world.lookup(name), PORT));
    let state = started.clone();
    world.node(name, 1, disk, move |shard| {
        let (state, seeds) = (state.clone(), seeds.clone());
        async move {
            assert_eq!(shard, ShardId(0), "a node of one shard");
            let stack = stack::start(*LAYERS, config(address, seeds)).await;
            let (_stack, result) = match stack {
                Ok(stack) => (Some(stack), Ok(())),
                Err(error) => (None, Err(error.to_string())),
            };
            state.replace(Some(result));
            std::future::pending::<()>().await;
        }
    });
    started
}

/// Runs the world until a start has ended.
fn ended(world: &mut World, started: &Started, what: &str) -> Result<(), String> {
    let begun = world.elapsed();
    while started.borrow().is_none() {
        world.step();
        assert!(world.elapsed() - begun < LONGEST_START, "the start does not end: {what}");
    }
    started.take().expect("it has ended")
}

#[test]
fn a_join_with_a_failing_disk_ends() {
    let (mut failed, mut of_group) = (0, 0);
    for skip in (0..).step_by(STEP) {
        let (mut world, what) = (World::new(skip as u64), format!("after {skip} operations"));
        let seeds: Vec<SocketAddr> = ["a", "b"].map(|name| SocketAddr::new(world.lookup(name), PORT)).into();
        let first = start(&mut world, "a", &Disk::new(1), vec![seeds[0]]);
        ended(&mut world, &first, "the first node").expect("it starts");
        let disk = Disk::new(2);
        disk.refuse_below("/node/raft", Refusal::Broken, skip as u32, u32::MAX);
        let second = start(&mut world, "b", &disk, seeds);
        let Err(why) = ended(&mut world, &second, &what) else { break };
        failed += 1;
        of_group += u32::from(why.contains("can no longer apply changes of the metadata"));
    }
    println!("{failed} starts failed, {of_group} of them because of the group");
    assert!(of_group > 3, "{failed} starts failed, {of_group} of them because of the group");
}
