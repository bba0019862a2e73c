//! Members that are started with an older copy of their log.

use super::tests::{Net, Scratch, Way, host, join, soon, start};
use super::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

struct Three {
    scratch: Scratch,
    net: Rc<Net>,
}

impl Three {
    /// Three voters with one command in their logs.
    async fn new(name: &str) -> (Three, Vec<Rc<Group>>) {
        let it = Three { scratch: Scratch::new(name), net: Rc::default() };
        let mut groups = Vec::new();
        for n in 1..=3 {
            let dir = it.dir(n);
            let (group, _) = if n == 1 { start(&dir, host(n)).await } else { join(&dir, host(n)).await };
            groups.push(it.connected(n, group));
        }
        groups[0].add(host(2)).await.expect("added");
        groups[0].add(host(3)).await.expect("added");
        groups[0].set_voters(&BTreeSet::from([1, 2, 3].map(host))).await.expect("set");
        it.decide(&groups, 1).await;
        (it, groups)
    }

    fn dir(&self, n: u8) -> PathBuf {
        self.scratch.join(n.to_string())
    }

    fn group(&self, n: u8) -> Rc<Group> {
        self.net.groups.borrow()[&host(n)].clone()
    }

    fn connected(&self, n: u8, group: Rc<Group>) -> Rc<Group> {
        self.net.groups.borrow_mut().insert(host(n), group.clone());
        group.connect(Rc::new(Way { net: self.net.clone(), own: host(n) }));
        group
    }

    /// A command that all of these groups have applied.
    async fn decide(&self, groups: &[Rc<Group>], command: u8) {
        let proposed = groups[0].propose(vec![command], soon()).await.expect("decided");
        for group in groups {
            group.wait_for(proposed.index, soon()).await.expect("applied");
        }
    }

    async fn up(&self, n: u8) -> Rc<Group> {
        let (group, _) = start(&self.dir(n), host(n)).await;
        self.connected(n, group)
    }

    async fn down(&self, n: u8) {
        let group = self.net.groups.borrow_mut().remove(&host(n));
        group.expect("it runs").stop().await;
    }

    /// Replaces a node's directory by another one.
    fn put_back(&self, n: u8, from: &Path) {
        std::fs::remove_dir_all(self.dir(n)).expect("removed");
        copy(from, &self.dir(n));
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("read") {
        let entry = entry.expect("read");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[test]
fn a_member_that_lacks_acknowledged_changes_fails_with_a_reason() {
    rt::block_on(async {
        let (three, groups) = Three::new("forgotten").await;
        let old = three.scratch.join("old");
        drop(groups);
        three.down(2).await;
        copy(&three.dir(2), &old);
        let (first, second) = (three.group(1), three.up(2).await);
        three.decide(&[first.clone(), second], 2).await;
        three.down(2).await;
        three.put_back(2, &old);
        let again = three.up(2).await;
        let why = soon().limit(again.failure()).await.expect("the failure is reported");
        assert!(
            why.contains("lacks acknowledged changes of the metadata") && why.contains("empty data directory"),
            "{why}"
        );
        three.decide(&[first, three.group(3)], 3).await;
        for n in 1..=3 {
            three.down(n).await;
        }
    });
}

#[test]
fn a_history_that_others_have_decided_differently_is_refused() {
    rt::block_on(async {
        let (three, groups) = Three::new("fork").await;
        let old = three.scratch.join("old");
        three.down(3).await;
        three.down(2).await;
        copy(&three.dir(2), &old);
        let second = three.up(2).await;
        three.decide(&[groups[0].clone(), second], 2).await;
        drop(groups);
        three.down(1).await;
        three.down(2).await;
        three.put_back(2, &old);
        // Neither of these two nodes has the last committed entry.
        let others = [three.up(2).await, three.up(3).await];
        three.decide(&others, 3).await;
        let first = three.up(1).await;
        let why = soon().limit(first.failure()).await.expect("it notices");
        assert!(why.contains("different committed changes") && why.contains("empty data directory"), "{why}");
        three.decide(&others, 4).await;
        for n in 1..=3 {
            three.down(n).await;
        }
    });
}
