//! Tablets and tables that leave a shard, and tablets that move to it. The engine removes the data
//! of tablets and tables that leave. A tablet that moves here begins empty.

use super::follow::remove_once;
use super::service::{MetadataService, finished};
use super::state::Table;
use engine::{EngineError, TabletRange};
use model::id::TableId;
use std::rc::Rc;

/// Data that a shard no longer owns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left {
    /// A dropped table, with the time of the drop in microseconds since 1970.
    Table(TableId, i64),
    /// A tablet that moved away.
    Tablet(TableId, u32),
}

/// The time is only part of a snapshot's name. Two removals of the same table are equal whatever
/// their times are. A removal must not be repeated after another table got the id.
impl PartialEq for Left {
    fn eq(&self, other: &Left) -> bool {
        match (self, other) {
            (Left::Table(one, _), Left::Table(two, _)) => one == two,
            (Left::Tablet(one, tablet), Left::Tablet(two, other)) => one == two && tablet == other,
            _ => false,
        }
    }
}

impl MetadataService {
    /// Notes data that this shard no longer owns.
    pub(super) fn leave(&self, left: impl IntoIterator<Item = Left>) {
        let mut known = self.left.borrow_mut();
        let fresh: Vec<Left> = left.into_iter().filter(|left| !known.contains(left)).collect();
        known.extend(fresh);
    }

    /// Removes the data that this node no longer owns, which is otherwise done in the background.
    /// On shard 0.
    pub async fn finish_removals(self: &Rc<Self>) -> Result<(), String> {
        remove_once(self).await
    }

    /// Removes the data that this shard no longer owns. Completes even if the caller stops waiting.
    pub(super) async fn remove_left(self: &Rc<Self>) -> Result<(), String> {
        let service = self.clone();
        finished(rt::task::spawn(async move { service.remove_left_now().await })).await
    }

    async fn remove_left_now(&self) -> Result<(), String> {
        let Ok(_turn) = self.removing.acquire().await else { return Ok(()) };
        let (mut removed, list) = (Ok(()), self.left.borrow().clone());
        for left in list {
            let one = self.remove_one(&left).await;
            removed = removed.and(one.map_err(|error| error.to_string()));
        }
        removed
    }

    /// Removes what this shard still has of a tablet that moved away, if it has any.
    async fn remove_pending(&self, left: Left) -> Result<(), String> {
        let is_pending = || self.left.borrow().contains(&left);
        if !is_pending() {
            return Ok(());
        }
        let _turn = self.removing.acquire().await.map_err(|_| "the node is stopping")?;
        match is_pending() {
            true => self.remove_one(&left).await.map_err(|error| error.to_string()),
            false => Ok(()),
        }
    }

    /// Removes a table from this shard that is dropped, or that the staged metadata replaces by
    /// another table with the same id. Completes even if the caller stops waiting.
    pub(super) async fn part_from(self: &Rc<Self>, table: TableId, at_micros: i64) -> Result<(), String> {
        if self.engine.has_table(table) {
            self.forget_queriers(table);
        }
        self.engine.forget_shard_moves(table);
        let service = self.clone();
        let parted = rt::task::spawn(async move {
            let _turn = service.removing.acquire().await.map_err(|_| "the node is stopping")?;
            let gone = |left: &Left| matches!(left, Left::Tablet(of, _) if *of == table);
            service.remove_one(&Left::Table(table, at_micros)).await.map_err(|error| error.to_string())?;
            service.left.borrow_mut().retain(|left| !gone(left));
            Ok::<_, String>(())
        });
        finished(parted).await
    }

    async fn remove_one(&self, left: &Left) -> Result<(), EngineError> {
        let done = match left {
            Left::Table(table, at_micros) => self.engine.drop_table(*table, *at_micros).await,
            Left::Tablet(table, tablet) => self.engine.remove_tablet(*table, *tablet).await,
        };
        match done {
            // The shard has removed the table before. Files may be left in the table's directory,
            // which is removed last.
            Ok(()) | Err(EngineError::NoSuchTable(_)) => {}
            Err(error) => return Err(error),
        }
        self.left.borrow_mut().retain(|other| other != left);
        if let Left::Table(id, _) = left {
            self.dropping.borrow_mut().retain(|table| table.schema.id != *id);
        }
        Ok(())
    }

    /// Adds the tablets of a table that move to this shard to the engine. A tablet that was here
    /// before is removed first, so that it starts empty. A tablet that another shard of this node
    /// hands over is left to that shard.
    pub(super) async fn take_tablets(&self, before: Option<&Table>, table: &Table) -> Result<(), String> {
        let id = table.schema.id;
        for tablet in self.own_tablets(table) {
            let left = Left::Tablet(id, tablet);
            // Asked for each: a removal in the background may end meanwhile.
            if self.engine.tablets_of(id).contains(&tablet) && !self.left.borrow().contains(&left) {
                continue;
            }
            if self.is_handed_here(before, table, tablet) || self.engine.expected_tablets(id).contains(&tablet) {
                continue;
            }
            // Also what another shard of this node still has: after a crash, this shard would find
            // it in the directory.
            let removed =
                self.shards.metadata.call_all(move |service| async move { service.remove_pending(left).await });
            removed.await.into_iter().collect::<Result<(), String>>()?;
            let range = TabletRange { id: tablet, range: table.tablets.range(tablet) };
            self.engine.add_tablet(id, range).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
