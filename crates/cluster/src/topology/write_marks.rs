//! Write marks: detect a start on an older copy of a data directory that was made in the same run.
//!
//! A run ([`super::runs`]) does not change while a process runs, and the metadata may stay the
//! same. So a member counts its writes, coarsely. For every 2 s in which its commitlogs, its hints
//! or its metadata log have grown, it raises its *write mark* by one. It first makes the mark
//! durable in its own data directory, and then announces it to all members. They keep the mark in
//! memory and, a little later, on their disks. At a start, the member asks the others. If one of
//! them knows a higher mark than the data directory has, the directory is older than the member's
//! data.
//!
//! - **A legal restart is never refused.** A mark is durable before it is announced, so the
//!   directory has it after kill -9 and after power loss.
//! - **The cost is one small file and one small message to each member every 2 s**, on a member
//!   that takes writes. An idle cluster writes and sends nothing for it. Entries of the metadata
//!   log instead would cost an fsync on every node, and only the leader knows the log position of a
//!   member.
//! - **The receiver of an announcement judges the order of two processes**, not the sender: an
//!   announcement names the mark that the process began with. If the receiver knows a higher mark
//!   from another process, it keeps the higher mark, and reports it in its answer. So a process on
//!   an older copy cannot count up until its mark looks right.
//!
//! A copy is not detected if the member announced no mark after the copy was made. Such a copy
//! lacks at most the writes of the last 2 s before the member ended.

use super::Topology;
use engine::datadir::{AnnouncedMark, StoredMarks};
use model::id::HostId;
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uuid::Uuid;

/// The announcement of a node's write mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MarkAnnouncement {
    /// The process; another one at each start.
    process: Uuid,
    /// The mark that its data directory had when it began.
    first: u64,
    /// The mark now.
    mark: u64,
}

/// The write marks of this node, and the marks that other nodes announced. On shard 0.
pub struct WriteMarks {
    dir: PathBuf,
    host: HostId,
    process: Uuid,
    /// `None` if the directory has no file of marks.
    stored_at_start: Option<u64>,
    first: Cell<u64>,
    own: Cell<u64>,
    others: RefCell<BTreeMap<HostId, AnnouncedMark>>,
    /// Whether other nodes have announced marks that are not on this node's disk.
    is_behind: Cell<bool>,
    /// Held while the file is written.
    turn: Semaphore,
}

/// Accepts an announcement, unless a higher mark of another process is known.
fn accept(known: &mut Option<AnnouncedMark>, announcement: MarkAnnouncement) -> bool {
    let MarkAnnouncement { process, first, mark } = announcement;
    let is_accepted = known.is_none_or(|known| match known.process == process {
        true => known.mark < mark,
        false => known.mark <= first,
    });
    if is_accepted {
        *known = Some(AnnouncedMark { process, mark });
    }
    is_accepted
}

impl WriteMarks {
    /// Reads the marks in the data directory of a node.
    pub async fn open(dir: &Path, host: HostId) -> io::Result<Rc<WriteMarks>> {
        let stored = StoredMarks::read(dir, host).await?;
        let (stored_at_start, own) = stored.as_ref().map_or((None, 0), |stored| (Some(stored.own), stored.own));
        let others = stored.map(|stored| stored.others).unwrap_or_default();
        Ok(Rc::new(WriteMarks {
            dir: dir.to_owned(),
            host,
            process: rt::random::uuid_v4(),
            stored_at_start,
            first: Cell::new(own),
            own: Cell::new(own),
            others: RefCell::new(others),
            is_behind: Cell::new(false),
            turn: Semaphore::new(1),
        }))
    }

    /// The mark that the data directory had at the start of this process; `None` if it has no
    /// usable file of marks.
    pub fn stored_at_start(&self) -> Option<u64> {
        self.stored_at_start
    }

    /// Begins with a mark that other nodes know, because the directory has none and the operator
    /// accepts the loss.
    pub fn adopt(&self, mark: u64) {
        self.first.set(self.first.get().max(mark));
        self.own.set(self.own.get().max(mark));
    }

    /// The announcement of this process.
    pub fn announcement(&self) -> MarkAnnouncement {
        MarkAnnouncement { process: self.process, first: self.first.get(), mark: self.own.get() }
    }

    /// Raises this node's mark, durably. On an error, the mark is not raised.
    pub async fn raise(&self, topology: &Topology) -> io::Result<()> {
        self.write(topology, self.own.get().saturating_add(1)).await
    }

    /// Writes marks of others that are not on the disk yet.
    pub async fn save(&self, topology: &Topology) -> io::Result<()> {
        if self.is_behind.get() { self.write(topology, self.own.get()).await } else { Ok(()) }
    }

    async fn write(&self, topology: &Topology, own: u64) -> io::Result<()> {
        let _turn = self.turn.acquire().await.map_err(|_| io::Error::other("the node is stopping"))?;
        self.others.borrow_mut().retain(|host, _| topology.node(*host).is_some());
        self.is_behind.set(false);
        let stored = StoredMarks { host: self.host, own, others: self.others.borrow().clone() };
        let written = stored.write(&self.dir).await;
        match &written {
            Ok(()) => {
                debug_assert!(self.own.get() <= own, "the mark of a node only rises");
                self.own.set(own);
            }
            Err(_) => self.is_behind.set(true),
        }
        written
    }

    /// Records the announcement of another node.
    pub(super) fn record(&self, host: HostId, announcement: MarkAnnouncement) {
        let mut others = self.others.borrow_mut();
        let mut known = others.get(&host).copied();
        if accept(&mut known, announcement) {
            others.extend(known.map(|known| (host, known)));
            self.is_behind.set(true);
        }
    }

    /// The highest mark that another node has announced to this one.
    pub(super) fn announced_by(&self, host: HostId) -> Option<AnnouncedMark> {
        self.others.borrow().get(&host).copied()
    }

    /// The mark of this node that another node knows, if the data directory lacked it when this
    /// process began.
    pub(super) fn lacked(&self, known: Option<AnnouncedMark>) -> Option<u64> {
        known.filter(|known| known.process != self.process && known.mark > self.first.get()).map(|known| known.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::node::tests::node;

    fn announced(process: u128, first: u64, mark: u64) -> MarkAnnouncement {
        MarkAnnouncement { process: Uuid::from_u128(process), first, mark }
    }

    #[test]
    fn a_process_that_began_with_an_older_mark_is_not_accepted() {
        let mut known = None;
        let cases = [
            (announced(1, 0, 0), true, 0),
            (announced(1, 0, 3), true, 3),
            // It was delayed on its way.
            (announced(1, 0, 2), false, 3),
            // A restart: the mark may have become durable without being announced.
            (announced(2, 4, 4), true, 4),
            (announced(2, 4, 7), true, 7),
            // An older copy counts up.
            (announced(3, 5, 6), false, 7),
            (announced(3, 5, 99), false, 7),
            // A delayed announcement of the previous process.
            (announced(1, 0, 4), false, 7),
            (announced(4, 7, 7), true, 7),
            (announced(4, 7, 8), true, 8),
        ];
        for (announcement, is_accepted, mark) in cases {
            assert_eq!(accept(&mut known, announcement), is_accepted, "{announcement:?}");
            assert_eq!(known.map(|known| known.mark), Some(mark), "{announcement:?}");
        }
    }

    #[test]
    fn marks_are_on_the_disk_before_they_are_announced() {
        let scratch = test_support::Scratch::new("write-marks");
        rt::block_on(async {
            let (own, other) = (node(1, "", ""), node(2, "", ""));
            let mut topology = Topology::default();
            topology.put(own.clone());
            topology.put(other.clone());
            let marks = WriteMarks::open(&scratch, own.host).await.expect("opened");
            assert_eq!((marks.stored_at_start(), marks.announced_by(other.host)), (None, None));
            marks.record(other.host, announced(7, 0, 5));
            marks.record(node(3, "", "").host, announced(8, 0, 5));
            marks.raise(&topology).await.expect("raised");
            marks.raise(&topology).await.expect("raised");
            assert_eq!(marks.announcement(), MarkAnnouncement { process: marks.process, first: 0, mark: 2 });
            let known = |mark| Some(AnnouncedMark { process: Uuid::from_u128(9), mark });
            assert_eq!(marks.lacked(Some(AnnouncedMark { process: marks.process, mark: 2 })), None, "it is its own");
            assert_eq!(marks.lacked(known(1)), Some(1), "its directory had no mark");

            let again = WriteMarks::open(&scratch, own.host).await.expect("opened");
            assert_eq!(
                (again.stored_at_start(), again.announced_by(other.host).map(|known| known.mark)),
                (Some(2), Some(5))
            );
            assert_eq!(again.announced_by(node(3, "", "").host), None, "it is not a member");
            assert_eq!((again.lacked(known(2)), again.lacked(known(3)), again.lacked(None)), (None, Some(3), None));
            let foreign = WriteMarks::open(&scratch, other.host).await.expect("opened");
            assert_eq!(foreign.stored_at_start(), None, "the file belongs to another node");
            assert_eq!(foreign.lacked(known(7)), Some(7));
            foreign.adopt(7);
            assert_eq!((foreign.lacked(known(7)), foreign.lacked(known(8))), (None, Some(8)));
            foreign.raise(&topology).await.expect("raised");
            assert_eq!(foreign.announcement().mark, 8);
        });
    }
}
