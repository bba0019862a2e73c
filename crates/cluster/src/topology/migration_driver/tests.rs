//! Which tablets may begin to move, and which step comes next.

use super::*;
use crate::topology::node::tests::{TABLE, metadata as one_table, node};

fn replica(host: u8, shard: u16) -> TabletReplica {
    TabletReplica { host: HostId(Uuid::from_u128(host.into())), shard }
}

/// Four nodes of two shards, the last of which has left, and a table of two tablets on the first
/// two nodes.
fn metadata() -> Metadata {
    let nodes = (1..=4).map(|n| {
        let mut node = node(n, "dc1", "r1");
        if n == 4 {
            node.state = NodeState::Left;
        }
        node
    });
    let copies = vec![replica(1, 0), replica(2, 1)];
    one_table(nodes, [], vec![copies.clone(), copies])
}

fn begun(tablet: u32, stage: Stage, new: &[TabletReplica]) -> Op {
    let (kind, new_replicas) = (TransitionKind::Migration, Replicas::from_slice(new));
    let moving = Transition { kind, stage, new_replicas, session: None };
    Op::PutTransition(Box::new(moving.written(TABLE, tablet)))
}

#[test]
fn transitions_that_may_begin() {
    use TransitionKind::{IntranodeMigration, Migration, Rebuild};
    let metadata = metadata().with(&[begun(1, Stage::Streaming, &[replica(1, 0), replica(3, 0)])]).unwrap();
    let one_moves = "only one replica can move at a time";
    let one_comes = "only one replica can be added or removed at a time";
    type Case<'a> = (u32, TransitionKind, &'a [TabletReplica], Result<(), &'a str>);
    let cases: [Case<'_>; 13] = [
        (0, Migration, &[replica(1, 0), replica(3, 1)], Ok(())),
        (0, Rebuild, &[replica(1, 0), replica(2, 1), replica(3, 0)], Ok(())),
        (0, Rebuild, &[replica(2, 1)], Ok(())),
        (0, Migration, &[replica(3, 1)], Err(one_moves)),
        (0, Migration, &[replica(1, 0), replica(2, 1)], Err(one_moves)),
        (0, Rebuild, &[replica(3, 0)], Err(one_comes)),
        (0, Migration, &[replica(1, 0), replica(1, 0)], Err("would have two replicas")),
        (0, Migration, &[replica(1, 1), replica(3, 0)], Err("has the tablet on another shard")),
        (0, IntranodeMigration, &[replica(1, 1), replica(2, 0)], Err("upgrade all nodes first")),
        (0, Migration, &[replica(1, 0), replica(3, 2)], Err("has 2 shards")),
        (0, Migration, &[replica(1, 0), replica(4, 0)], Err("serves no tablets")),
        (1, Migration, &[replica(1, 0), replica(3, 0)], Err("is already moving: streaming")),
        (2, Migration, &[replica(1, 0), replica(3, 0)], Err("the table has no tablet 2: it has 2 tablets")),
    ];
    for (tablet, kind, new, expected) in cases {
        let found = check(&metadata, TABLE, tablet, kind, new);
        match expected {
            Ok(()) => assert_eq!(found, Ok(()), "{kind:?} {new:?}"),
            Err(words) => assert!(found.as_ref().is_err_and(|why| why.contains(words)), "{found:?} {words}"),
        }
    }
    assert!(check(&metadata, TABLE, 0, IntranodeMigration, &[replica(1, 0)]).is_err());
    assert!(check(&metadata, TableId(Uuid::nil()), 0, Migration, &[]).is_err());
}

/// The next stage follows the current one, not the one seen earlier. If a node that receives a
/// replica has left, the transition is rolled back.
#[test]
fn steps_follow_the_current_stage() {
    // Sessions are random, and random numbers need a shard.
    rt::block_on(async { follow_the_current_stage() });
}

fn follow_the_current_stage() {
    let to_third = [replica(1, 0), replica(3, 0)];
    let metadata = metadata().with(&[begun(0, Stage::WriteBothReadOld, &to_third)]).unwrap();
    let seen = |metadata: &Metadata| -> Ready {
        let (table, tablet, moving) = metadata.transitions().next().expect("one moves");
        let seen = (table.schema.id, tablet, moving.clone());
        Ready { is_given_up: is_given_up(metadata, &seen), seen }
    };
    let now = seen(&metadata);
    let Some(Op::PutTransition(next)) = step(&metadata, &now) else { panic!("there is a next stage") };
    assert_eq!((next.stage.as_str(), next.session.is_some()), ("streaming", true));
    let copying = metadata.with(&[Op::PutTransition(next.clone())]).unwrap();
    assert!(step(&copying, &now).is_none(), "it has reached another stage since");
    assert!(copying.session_is_open(next.session.unwrap()) && !copying.session_is_open(Uuid::nil()));
    let Some(Op::PutTransition(next)) = step(&copying, &seen(&copying)) else { panic!("there is a next stage") };
    assert_eq!((next.stage.as_str(), next.session), ("write_both_read_new", None));
    let mut gone = node(3, "dc1", "r1");
    gone.state = NodeState::Left;
    let without = copying.with(&[Op::PutNode(Box::new(gone))]).unwrap();
    let Some(Op::PutTransition(next)) = step(&without, &seen(&without)) else { panic!("there is a next stage") };
    assert_eq!(next.stage, "cleanup_target");
    // While the barrier waits, a leaving node may stay, or one that served may leave.
    assert!(step(&copying, &seen(&without)).is_none(), "nothing was copied to it");
    let Some(Op::PutTransition(next)) = step(&without, &seen(&copying)) else { panic!("there is a next stage") };
    assert_eq!(next.stage, "cleanup_target");
    for (stage, moved) in [(Stage::EndMigration, true), (Stage::RevertMigration, false)] {
        let last = metadata.with(&[begun(0, stage, &to_third)]).unwrap();
        let end = step(&last, &seen(&last));
        assert_eq!(end, Some(Op::EndTransition { table: TABLE, tablet: 0, moved }));
    }
}

/// A tablet with a current or new replica on a node that is down waits for that node.
#[test]
fn a_tablet_waits_for_nodes_with_its_current_and_new_replicas() {
    let metadata = metadata().with(&[begun(0, Stage::Streaming, &[replica(1, 0), replica(3, 0)])]).unwrap();
    let (table, tablet, moving) = metadata.transitions().next().expect("one moves");
    let seen = (table.schema.id, tablet, moving.clone());
    for (host, expected) in [(1, true), (2, true), (3, true), (4, false)] {
        let down = BTreeSet::from([replica(host, 0).host]);
        assert_eq!(has_copy_on(&metadata, &seen, &down), expected, "node {host}");
    }
    assert!(!has_copy_on(&metadata, &seen, &BTreeSet::new()));
}

/// A driver that read the metadata before another leader raised the fence may have seen a
/// transition that is over, while the tablet looks the same again.
#[test]
fn a_leader_that_was_overtaken_does_nothing() {
    let looked = 7;
    let metadata = metadata().with(&[begun(0, Stage::UseNew, &[replica(1, 0), replica(3, 0)])]).unwrap();
    let (table, tablet, moving) = metadata.transitions().next().expect("one moves");
    let ready = [Ready { seen: (table.schema.id, tablet, moving.clone()), is_given_up: false }];
    for (fence, expected) in [(looked - 1, 2), (looked, 2), (looked + 1, 0)] {
        let fenced = metadata.with(&[Op::Fence(fence)]).unwrap();
        let steps = steps(&fenced, looked, &ready);
        assert_eq!(steps.len(), expected, "{steps:?}");
        assert!(steps.first().is_none_or(|first| *first == Op::Fence(looked)));
    }
    assert!(steps(&metadata, looked, &[]).is_empty());
}

#[test]
fn a_failing_tablet_copy_is_logged_at_intervals() {
    let driver = MigrationDriver::new(ClusterShards::default(), PerShard::new());
    let reported: Vec<bool> = (0..5).map(|_| driver.report_is_due(TABLE, 0)).collect();
    assert_eq!(reported, [true, false, false, false, false]);
    assert!(driver.report_is_due(TABLE, 1), "another one");
}

/// A node that stays keeps the replicas that have not moved yet.
#[test]
fn moves_from_a_node_that_stays_are_rolled_back() {
    let (from_second, from_first) = ([replica(1, 0), replica(3, 0)], [replica(3, 0), replica(2, 1)]);
    let cases = [
        (Stage::WriteBothReadOld, &from_second, Some("cleanup_target")),
        (Stage::Streaming, &from_second, Some("cleanup_target")),
        (Stage::WriteBothReadNew, &from_second, Some("write_both_read_old_fallback_cleanup")),
        (Stage::UseNew, &from_second, None),
        (Stage::CleanupTarget, &from_second, None),
        (Stage::Streaming, &from_first, None),
    ];
    for (stage, new, expected) in cases {
        let metadata = metadata().with(&[begun(1, stage, new)]).unwrap();
        let rollbacks = rollbacks_from(&metadata, replica(2, 1).host);
        let stages: Vec<_> = rollbacks
            .iter()
            .map(|op| match op {
                Op::PutTransition(back) => (back.tablet, back.stage.as_str()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(stages, Vec::from_iter(expected.map(|stage| (1, stage))), "{stage:?}");
    }
}
