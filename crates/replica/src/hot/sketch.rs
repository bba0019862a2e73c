//! Finds the heaviest partitions of a stream of operations in fixed memory (space-saving). Pure: no
//! clock, no I/O.
//!
//! A partition belongs to one set of eight slots. If all slots of the set are taken, a new
//! partition replaces the one with the smallest weight and starts from that weight. The inherited
//! part is kept as `missed`: the most that the new partition can have had before. So for each
//! partition of the sketch, `weight - missed <= true weight <= weight`. The true weight of any
//! other partition is at most the smallest weight of its set.

use crate::limiter::fold;
use model::id::TableId;
use model::token::Token;

/// Slots of a set.
const WAYS: usize = 8;

/// A slot below this weight is freed.
const NEGLIGIBLE: f64 = 0.01;

/// A partition: its table and its token. Partitions of one token count as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartitionId {
    /// The table.
    pub table: TableId,
    /// The partition's token.
    pub token: Token,
}

/// A partition of the sketch.
#[derive(Clone, Debug)]
pub struct Slot<V> {
    /// The partition.
    pub id: PartitionId,
    /// Its weight, at most.
    pub weight: f64,
    /// The part of the weight that may belong to other partitions.
    pub missed: f64,
    /// The value collected since the partition has the slot.
    pub value: V,
}

impl<V> Slot<V> {
    /// Its weight, at least.
    pub fn certain(&self) -> f64 {
        self.weight - self.missed
    }
}

/// The heaviest partitions.
#[derive(Debug)]
pub struct Sketch<V> {
    slots: Box<[Option<Slot<V>>]>,
}

impl<V: Default> Sketch<V> {
    /// A sketch with at least `slots` slots.
    pub fn new(slots: usize) -> Sketch<V> {
        let sets = slots.div_ceil(WAYS).max(1).next_power_of_two();
        Sketch { slots: std::iter::repeat_with(|| None).take(sets * WAYS).collect() }
    }

    /// Adds to the weight of a partition.
    pub fn add(&mut self, id: PartitionId, weight: f64) -> &mut Slot<V> {
        let set = self.set_of(id);
        let weight_of = |slot: &Option<Slot<V>>| slot.as_ref().map_or(0.0, |slot| slot.weight);
        let place = set.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.id == id));
        let (place, missed) = match place {
            Some(place) => (place, 0.0),
            None => {
                let least = (0..WAYS).min_by(|a, b| weight_of(&set[*a]).total_cmp(&weight_of(&set[*b]))).unwrap_or(0);
                (least, set[least].take().map_or(0.0, |replaced| replaced.weight))
            }
        };
        let slot = set[place].get_or_insert_with(|| Slot { id, weight: missed, missed, value: V::default() });
        slot.weight += weight;
        slot
    }

    /// The slot of a partition, if it has one.
    pub fn get_mut(&mut self, id: PartitionId) -> Option<&mut Slot<V>> {
        self.set_of(id).iter_mut().flatten().find(|slot| slot.id == id)
    }

    /// Multiplies all weights. `each` does the same with the values.
    pub fn scale(&mut self, factor: f64, mut each: impl FnMut(&mut V)) {
        for place in &mut self.slots {
            if let Some(slot) = place {
                slot.weight *= factor;
                slot.missed *= factor;
                each(&mut slot.value);
                if slot.weight < NEGLIGIBLE {
                    *place = None;
                }
            }
        }
    }

    /// All partitions of the sketch, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Slot<V>> {
        self.slots.iter().flatten()
    }

    /// All partitions of the sketch, in no order.
    pub fn into_slots(self) -> impl Iterator<Item = Slot<V>> {
        self.slots.into_iter().flatten()
    }

    fn set_of(&mut self, id: PartitionId) -> &mut [Option<Slot<V>>] {
        let table = id.table.0.as_u128();
        let hash = fold(id.token.0 as u64 ^ SALT, fold(table as u64 ^ SALT, (table >> 64) as u64 | 1));
        // The number of sets is a power of two.
        let set = (hash >> 32) as usize & (self.slots.len() / WAYS - 1);
        &mut self.slots[set * WAYS..][..WAYS]
    }
}

/// Spreads tokens over the sets. Not secret: of partitions that share a set on purpose, the eight
/// heaviest are still found.
const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
