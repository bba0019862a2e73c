//! Groups in one process, connected by function calls. Crashes, elections and lost messages:
//! `crates/sim/tests/all/raft.rs`.

use super::*;
use bytes::Bytes;
use engine::raft_log::RaftLog;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use rt::hash::HashMap;
use rt::sync::Deadline;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
pub(super) use test_support::Scratch;

/// A list of commands; an empty command is refused.
#[derive(Default)]
pub(super) struct Ledger(RefCell<Vec<Vec<u8>>>);

impl Machine for Ledger {
    fn apply(&self, command: Vec<u8>) -> LocalBoxFuture<'_, Result<Outcome, String>> {
        async move {
            rt::task::yield_now().await;
            if command.is_empty() {
                return Ok(Outcome::Stale);
            }
            self.0.borrow_mut().push(command);
            Ok(Outcome::Applied)
        }
        .boxed_local()
    }

    fn snapshot(&self) -> LocalBoxFuture<'static, Vec<u8>> {
        std::future::ready(stored::encode(&*self.0.borrow())).boxed_local()
    }

    fn install(&self, snapshot: Vec<u8>) -> LocalBoxFuture<'_, Result<(), String>> {
        async move {
            *self.0.borrow_mut() = stored::decode(&snapshot)?;
            Ok(())
        }
        .boxed_local()
    }
}

#[derive(Default)]
pub(super) struct Net {
    pub groups: RefCell<HashMap<HostId, Rc<Group>>>,
    cut_off: Cell<Option<HostId>>,
}

pub(super) struct Way {
    pub net: Rc<Net>,
    pub own: HostId,
}

impl Transport for Way {
    fn call(&self, to: HostId, message: Bytes, limit: Duration) -> LocalBoxFuture<'static, Result<Bytes, CallFailed>> {
        let cut = self.net.cut_off.get().is_some_and(|host| host == to || host == self.own);
        let (group, own) = (self.net.groups.borrow().get(&to).cloned(), self.own);
        async move {
            let unreachable = || CallFailed { why: "cut off".into(), may_have_been_done: false };
            let Some(group) = group.filter(|_| !cut) else { return Err(unreachable()) };
            let answered = rt::time::timeout(limit, group.handle(own, message)).await;
            let failed = |why| CallFailed { why, may_have_been_done: true };
            answered.map_err(|late| failed(late.to_string()))?.map_err(failed)
        }
        .boxed_local()
    }
}

pub(super) fn host(n: u8) -> HostId {
    HostId(Uuid::from_u128(n.into()))
}

pub(super) async fn start(dir: &Path, host: HostId) -> (Rc<Group>, Rc<Ledger>) {
    let empty = stored::encode(&Vec::<Vec<u8>>::new());
    let opened = stored::open(dir, host, empty).await.expect("opened");
    let ledger = Rc::new(Ledger::default());
    if let Some(snapshot) = opened.snapshot.clone() {
        ledger.install(snapshot).await.expect("understood");
    }
    ledger.0.borrow_mut().extend(opened.commands.iter().filter(|command| !command.is_empty()).cloned());
    let group = Group::start(opened, dir.to_path_buf(), "test", ledger.clone()).await.expect("started");
    (group, ledger)
}

pub(super) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn a_node_alone_decides_at_once_and_remembers() {
    let scratch = Scratch::new("alone");
    rt::block_on(async {
        let mut known = Vec::new();
        for life in 0..3u8 {
            let (group, ledger) = start(&scratch, host(1)).await;
            assert_eq!(*ledger.0.borrow(), known, "life {life}");
            assert!(group.is_alone() && group.is_leader());
            group.barrier(soon()).await.expect("no other node is needed");
            for n in 0..120 {
                let command = vec![life, n];
                let proposed = group.propose(command.clone(), soon()).await.expect("decided");
                assert_eq!(proposed.outcome, Outcome::Applied);
                known.push(command);
            }
            assert_eq!(group.propose(Vec::new(), soon()).await.expect("decided").outcome, Outcome::Stale);
            assert_eq!(*ledger.0.borrow(), known);
            group.stop().await;
        }
        let log = RaftLog::open(&scratch, host(1)).await.expect("opened");
        let entries = log.entries(0, u64::MAX).len();
        assert!((1..300).contains(&entries), "the log was cut: {entries}");
    });
}

#[test]
fn few_large_entries_are_cut_by_their_bytes() {
    const COMMAND: usize = 4 << 20;
    let scratch = Scratch::new("large");
    rt::block_on(async {
        let (group, ledger) = start(&scratch, host(1)).await;
        for n in 0..10 {
            group.propose(vec![n; COMMAND], soon()).await.expect("decided");
        }
        // The first nine entries fill a log. They are in a snapshot soon, and the next command cuts
        // them away.
        let cut = async {
            while group.saved.index() < Some(9) {
                rt::task::yield_now().await;
            }
            group.propose(vec![77], soon()).await.expect("decided");
            while group.log.entry_bytes_after(0) > group::LARGE_LOG {
                rt::task::yield_now().await;
            }
        };
        rt::time::timeout(Duration::from_secs(60), cut).await.expect("the log is cut");
        let known = ledger.0.take();
        group.stop().await;
        drop(group);
        let (group, ledger) = start(&scratch, host(1)).await;
        assert!(*ledger.0.borrow() == known, "{} commands, not {}", ledger.0.borrow().len(), known.len());
        group.stop().await;
    });
}

#[test]
fn three_nodes_agree_and_one_alone_does_not() {
    let scratch = Scratch::new("three");
    rt::block_on(async {
        let net = Rc::new(Net::default());
        let mut nodes = Vec::new();
        for n in 1..=3 {
            let dir = scratch.join(n.to_string());
            let node = if n == 1 { start(&dir, host(n)).await } else { join(&dir, host(n)).await };
            net.groups.borrow_mut().insert(host(n), node.0.clone());
            nodes.push(node);
        }
        let (first, ledger) = nodes[0].clone();
        for n in 0..=255u8 {
            first.propose(vec![1, n], soon()).await.expect("decided");
            first.propose(vec![2, n], soon()).await.expect("decided");
        }
        for (n, (group, _)) in (1..).zip(&nodes) {
            group.connect(Rc::new(Way { net: net.clone(), own: host(n) }));
        }
        // These nodes are far behind, so they begin with a snapshot.
        first.add(host(2)).await.expect("added");
        first.add(host(3)).await.expect("added");
        nodes[1].0.barrier(soon()).await.expect("there is a leader");
        assert_eq!(*nodes[1].1.0.borrow(), *ledger.0.borrow());
        let all: BTreeSet<HostId> = (1..=3).map(host).collect();
        first.set_voters(&all).await.expect("set");
        assert_eq!((first.voters(), first.members()), (all.clone(), all));
        let proposed = nodes[2].0.propose(vec![9], soon()).await.expect("decided by the leader");
        assert_eq!(nodes[2].1.0.borrow().last(), Some(&vec![9]), "the proposing node has applied the command");
        nodes[1].0.barrier(soon()).await.expect("there is a leader");
        assert_eq!(nodes[1].1.0.borrow().last(), Some(&vec![9]));
        assert!(first.has_caught_up(host(3)) && proposed.index > 500);

        net.cut_off.set(Some(host(1)));
        let short = || Deadline::after(Duration::from_millis(200));
        let error = first.barrier(short()).await.expect_err("it cannot know");
        assert!(matches!(error, GroupError::NoMajority { voters: 3, .. }), "{error}");
        let error = first.propose(vec![10], short()).await.expect_err("it cannot decide");
        assert!(matches!(error, GroupError::Unknown(_)), "{error}");
        for (group, _) in &nodes {
            group.stop().await;
        }
        net.groups.borrow_mut().clear();
    });
}

#[test]
fn a_member_without_a_vote_can_be_removed() {
    let scratch = Scratch::new("removed");
    rt::block_on(async {
        let net = Rc::new(Net::default());
        let (first, _) = start(&scratch.join("1"), host(1)).await;
        let (second, ledger) = join(&scratch.join("2"), host(2)).await;
        for (n, group) in [(1, &first), (2, &second)] {
            net.groups.borrow_mut().insert(host(n), group.clone());
            group.connect(Rc::new(Way { net: net.clone(), own: host(n) }));
        }
        first.add(host(2)).await.expect("added");
        first.propose(vec![1], soon()).await.expect("decided");
        second.barrier(soon()).await.expect("there is a leader");
        assert_eq!(*ledger.0.borrow(), [vec![1]]);
        first.remove(&BTreeSet::from([host(1)])).await.expect_err("it votes");
        first.remove(&BTreeSet::from([host(2)])).await.expect("removed");
        assert_eq!(first.members(), BTreeSet::from([host(1)]));
        first.propose(vec![2], soon()).await.expect("decided");
        first.add(host(2)).await.expect("added again");
        second.barrier(soon()).await.expect("there is a leader");
        assert_eq!(*ledger.0.borrow(), [vec![1], vec![2]]);
        first.stop().await;
        second.stop().await;
        net.groups.borrow_mut().clear();
    });
}

/// A node without a group, which waits to be added to one.
pub(super) async fn join(dir: &Path, host: HostId) -> (Rc<Group>, Rc<Ledger>) {
    let opened = stored::open_to_join(dir, host).await.expect("opened");
    let ledger = Rc::new(Ledger::default());
    let group = Group::start(opened, dir.to_path_buf(), "test", ledger.clone()).await.expect("started");
    (group, ledger)
}

/// A node has yet to write its own snapshot when it receives a later one of the leader. The log is
/// then cut to the leader's snapshot.
#[test]
fn a_snapshot_never_gives_way_to_an_earlier_one() {
    use openraft::storage::RaftStateMachine;
    use openraft::{CommittedLeaderId, RaftSnapshotBuilder, SnapshotMeta};
    let scratch = Scratch::new("order");
    rt::block_on(async {
        let empty = stored::encode(&Vec::<Vec<u8>>::new());
        let opened = stored::open(&scratch, host(1), empty).await.expect("opened");
        let saved = Rc::new(saved::Saved::new(opened.saved));
        let mut applier = machine::Applier::new(&opened, saved, Rc::new(Ledger::default()));
        let at = |index| LogId::new(CommittedLeaderId::new(1, host(2).into()), index);
        let entry = Entry { log_id: at(2), payload: openraft::EntryPayload::Blank };
        applier.apply([entry]).await.expect("applied");
        let mut builder = applier.get_snapshot_builder().await;
        let meta = SnapshotMeta { last_log_id: Some(at(9)), ..SnapshotMeta::default() };
        let body = stored::encode(&vec![vec![7u8]]);
        applier.install_snapshot(&meta, Box::new(std::io::Cursor::new(body))).await.expect("installed");
        let built = builder.build_snapshot().await.expect("nothing to do");
        assert_eq!(built.meta.last_log_id, None, "there is a later one");
        let there = applier.get_current_snapshot().await.expect("read").expect("there is one");
        assert_eq!(there.meta.last_log_id, Some(at(9)));
    });
}
