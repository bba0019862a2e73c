//! The rows of a large partition: a tree of chunks, each behind an `Rc`, that is shared between
//! versions.
//!
//! Cloning [`Chunks`] costs one pointer: this is how a reader keeps a snapshot. To change a shared
//! node, a writer copies that node and the nodes above it, never the partition. Rows are never
//! removed: a memtable only grows until it is flushed.

use super::ALLOCATION;
use super::arena::OwnRow;
use model::key::{Clustering, PositionRef};
use model::row::Row;
use model::schema::ClusteringOrder;
use std::cmp::Ordering;
use std::rc::Rc;

/// The most rows in a chunk, and the most children of an inner node.
const FULL: usize = 48;

/// The memory of a row's place in a chunk, which is three quarters full.
const PLACE: usize = std::mem::size_of::<(Clustering, Row)>() * 4 / 3;

/// The memory of a row that was added: its bytes, its place, and two allocations, unless it is cut
/// from a block.
pub(super) fn bytes_of(own: &OwnRow) -> isize {
    let allocations = if own.is_cut { 0 } else { 2 * ALLOCATION };
    (PLACE + allocations + own.key.0.len() + own.row.len()) as isize
}

/// By how many bytes the memory grows when a row is replaced. A row that is cut from a block is not
/// freed.
pub(super) fn growth_of(old: &Row, is_cut: bool, new: &Row) -> isize {
    let freed = if is_cut { 0 } else { old.len() + ALLOCATION };
    (new.len() + ALLOCATION) as isize - freed as isize
}

#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    root: Rc<Node>,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Leaf),
    Inner(Vec<Child>),
}

#[derive(Clone, Debug)]
struct Leaf {
    rows: Vec<(Clustering, Row)>,
    /// Bit `i`: row `i` is [cut](OwnRow::is_cut) from a block.
    cut: u64,
}

const _: () = assert!(FULL < u64::BITS as usize, "a full chunk and one more row have a bit each");

/// The change of a row.
pub(crate) enum Upsert {
    /// A row that was not there.
    Insert(OwnRow),
    /// The row instead of the one that was.
    Replace(Row),
}

/// A subtree, and the least key that may be in it (the first child of a node may hold lesser ones).
#[derive(Clone, Debug)]
struct Child {
    least: Clustering,
    node: Rc<Node>,
}

impl Chunks {
    /// From a first row.
    pub fn new(first: OwnRow) -> Self {
        let mut rows = Vec::with_capacity(4);
        rows.push((first.key, first.row));
        Chunks { root: Rc::new(Node::Leaf(Leaf { rows, cut: first.is_cut.into() })) }
    }

    /// Inserts or replaces a row: `make` gets the existing one. Returns by how many bytes the rows
    /// grew.
    pub fn upsert(
        &mut self,
        order: &ClusteringOrder,
        key: &Clustering,
        make: impl FnOnce(Option<&Row>) -> Upsert,
    ) -> isize {
        let (grew, split) = upsert(&mut self.root, order, key, make);
        if let Some(right) = split {
            let left = Child { least: least_of(&self.root), node: self.root.clone() };
            self.root = Rc::new(Node::Inner(vec![left, right]));
        }
        grew
    }

    /// The first row behind `cut`, going forward, or the last one before it, going backward.
    pub fn seek(&self, order: &ClusteringOrder, cut: PositionRef<'_>, forward: bool) -> Option<Cursor> {
        seek(&self.root, order, cut, forward)
    }

    /// Calls `f` with every row until it says `false`; whether it saw all.
    pub fn for_each(&self, f: &mut impl FnMut(&Row) -> bool) -> bool {
        fn walk(node: &Node, f: &mut impl FnMut(&Row) -> bool) -> bool {
            match node {
                Node::Leaf(leaf) => leaf.rows.iter().all(|(_, row)| f(row)),
                Node::Inner(children) => children.iter().all(|child| walk(&child.node, f)),
            }
        }
        walk(&self.root, f)
    }

    /// The first or last row.
    pub fn edge(&self, first: bool) -> Option<Cursor> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => {
                    let index = if first { 0 } else { leaf.rows.len().checked_sub(1)? };
                    return Some(Cursor { leaf: node.clone(), index });
                }
                Node::Inner(children) => node = &(if first { children.first() } else { children.last() })?.node,
            }
        }
    }
}

/// A tree that is no longer used, to be freed chunk by chunk.
pub(crate) struct DeferredFree {
    nodes: Vec<Rc<Node>>,
}

impl From<Chunks> for DeferredFree {
    fn from(chunks: Chunks) -> Self {
        DeferredFree { nodes: vec![chunks.root] }
    }
}

impl DeferredFree {
    /// Frees about one chunk, unless a reader still has it; `false` when nothing is left.
    pub fn free_some(&mut self) -> bool {
        while let Some(node) = self.nodes.pop() {
            match Rc::try_unwrap(node) {
                Ok(Node::Inner(children)) => self.nodes.extend(children.into_iter().map(|child| child.node)),
                Ok(Node::Leaf(_)) | Err(_) => return true,
            }
        }
        false
    }
}

fn least_of(node: &Node) -> Clustering {
    match node {
        Node::Leaf(leaf) => leaf.rows[0].0.clone(),
        Node::Inner(children) => children[0].least.clone(),
    }
}

fn upsert(
    node: &mut Rc<Node>,
    order: &ClusteringOrder,
    key: &Clustering,
    make: impl FnOnce(Option<&Row>) -> Upsert,
) -> (isize, Option<Child>) {
    match Rc::make_mut(node) {
        Node::Leaf(leaf) => leaf.upsert(order, key, make),
        Node::Inner(children) => {
            // The first child takes all lesser keys, whatever its least one was.
            let i = children[1..].partition_point(|child| order.compare_rows(&child.least, key) != Ordering::Greater);
            let (grew, split) = upsert(&mut children[i].node, order, key, make);
            let Some(right) = split else { return (grew, None) };
            let at_end = i + 1 == children.len();
            children.insert(i + 1, right);
            let split = (children.len() > FULL).then(|| {
                let right = children.split_off(split_point(children.len(), at_end));
                Child { least: right[0].least.clone(), node: Rc::new(Node::Inner(right)) }
            });
            debug_assert!(
                children[1..].windows(2).all(|pair| order.compare_rows(&pair[0].least, &pair[1].least).is_lt()),
                "the chunks of a partition are in clustering order"
            );
            (grew, split)
        }
    }
}

impl Leaf {
    fn upsert(
        &mut self,
        order: &ClusteringOrder,
        key: &Clustering,
        make: impl FnOnce(Option<&Row>) -> Upsert,
    ) -> (isize, Option<Child>) {
        let Leaf { rows, cut } = self;
        // Appending is the most frequent case by far.
        let found = match rows.last() {
            Some((last, _)) if order.compare_rows(last, key) == Ordering::Less => Err(rows.len()),
            _ => rows.binary_search_by(|(own, _)| order.compare_rows(own, key)),
        };
        match (found, make(found.ok().map(|i| &rows[i].1))) {
            (Ok(i), Upsert::Replace(row)) => {
                let grew = growth_of(&rows[i].1, *cut >> i & 1 == 1, &row);
                rows[i].1 = row;
                *cut &= !(1 << i);
                (grew, None)
            }
            (Err(i), Upsert::Insert(own)) => {
                let grew = bytes_of(&own);
                let at_end = i == rows.len();
                rows.insert(i, (own.key, own.row));
                let before = (1 << i) - 1;
                *cut = *cut & before | (*cut & !before) << 1 | u64::from(own.is_cut) << i;
                (grew, (rows.len() > FULL).then(|| self.split(at_end)))
            }
            (Ok(_), Upsert::Insert(_)) | (Err(_), Upsert::Replace(_)) => {
                unreachable!("a row is inserted if it is not there, and replaced if it is")
            }
        }
    }

    /// Takes the right half, or the last row if rows are appended.
    fn split(&mut self, at_end: bool) -> Child {
        let at = split_point(self.rows.len(), at_end);
        let right = Leaf { rows: self.rows.split_off(at), cut: self.cut >> at };
        self.cut &= (1 << at) - 1;
        debug_assert!(!self.rows.is_empty() && !right.rows.is_empty(), "both halves of a chunk have rows");
        Child { least: right.rows[0].0.clone(), node: Rc::new(Node::Leaf(right)) }
    }
}

/// Where a full node is split: in the middle, except that rows inserted in order leave full
/// nodes.
fn split_point(len: usize, at_end: bool) -> usize {
    if at_end { len - 1 } else { len / 2 }
}

fn seek(node: &Rc<Node>, order: &ClusteringOrder, cut: PositionRef<'_>, forward: bool) -> Option<Cursor> {
    let is_before = |key: &Clustering| order.compare(PositionRef::row(key), cut) == Ordering::Less;
    match &**node {
        Node::Leaf(leaf) => {
            let i = leaf.rows.partition_point(|(key, _)| is_before(key));
            let index = if forward { i } else { i.checked_sub(1)? };
            (index < leaf.rows.len()).then(|| Cursor { leaf: node.clone(), index })
        }
        Node::Inner(children) => {
            let i = children[1..].partition_point(|child| is_before(&child.least));
            if forward {
                children[i..].iter().find_map(|child| seek(&child.node, order, cut, true))
            } else {
                children[..=i].iter().rev().find_map(|child| seek(&child.node, order, cut, false))
            }
        }
    }
}

/// A row within one version of the tree; keeps its chunk alive.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    leaf: Rc<Node>,
    index: usize,
}

impl Cursor {
    pub fn row(&self) -> &(Clustering, Row) {
        match &*self.leaf {
            Node::Leaf(leaf) => &leaf.rows[self.index],
            Node::Inner(_) => unreachable!("a cursor points to a leaf"),
        }
    }

    /// The neighbour in the given direction, within the version `of` that the cursor came from.
    pub fn step(mut self, of: &Chunks, order: &ClusteringOrder, forward: bool) -> Option<Cursor> {
        let Node::Leaf(Leaf { rows, .. }) = &*self.leaf else { unreachable!("a cursor points to a leaf") };
        let next = if forward { self.index + 1 } else { self.index.wrapping_sub(1) };
        if next < rows.len() {
            self.index = next;
            return Some(self);
        }
        let prefix = &rows[self.index].0.0;
        of.seek(order, PositionRef { prefix, weight: if forward { 1 } else { -1 } }, forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use model::key::ClusteringCut;
    use model::types::CqlType;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn order() -> ClusteringOrder {
        ClusteringOrder::new([(CqlType::Int, false)])
    }

    fn key(n: i32) -> Clustering {
        Clustering::from_components([&n.to_be_bytes()[..]])
    }

    fn row(n: u32) -> Row {
        Row(Bytes::copy_from_slice(&n.to_le_bytes()))
    }

    /// A row; every third key is cut from a block.
    fn own(n: i32, value: u32) -> OwnRow {
        OwnRow { key: key(n), row: row(value), is_cut: n % 3 == 0 }
    }

    fn upsert_of(old: Option<&Row>, n: i32, value: u32) -> Upsert {
        if old.is_some() { Upsert::Replace(row(value)) } else { Upsert::Insert(own(n, value)) }
    }

    fn number(key: &Clustering) -> i32 {
        i32::from_be_bytes(key.components().next().unwrap().try_into().unwrap())
    }

    fn all(chunks: &Chunks, forward: bool) -> Vec<(i32, Row)> {
        let mut out = Vec::new();
        let mut cursor = chunks.edge(forward);
        while let Some(at) = cursor {
            out.push((number(&at.row().0), at.row().1.clone()));
            cursor = at.step(chunks, &order(), forward);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
        #[test]
        fn behaves_as_a_map_and_snapshots_stay(writes in prop::collection::vec((-400i32..400, any::<u32>()), 1..1500), snapshot_at in 0usize..1500, seeks in prop::collection::vec((-420i32..420, any::<bool>()), 20)) {
            let order = order();
            let mut model = BTreeMap::new();
            let mut chunks: Option<Chunks> = None;
            let mut bytes = bytes_of(&own(writes[0].0, 0));
            let mut snapshot = None;
            for (i, &(n, value)) in writes.iter().enumerate() {
                model.insert(n, row(value));
                match &mut chunks {
                    None => chunks = Some(Chunks::new(own(n, value))),
                    Some(chunks) => {
                        bytes += chunks.upsert(&order, &key(n), |old| upsert_of(old, n, value));
                    }
                }
                if i == snapshot_at {
                    snapshot = Some((chunks.clone().unwrap(), model.clone()));
                }
            }
            let chunks = chunks.unwrap();
            // A row that was cut from a block and replaced takes both.
            let times = |n: i32| writes.iter().filter(|&&(other, _)| other == n).count();
            let replaced = model.keys().filter(|&&n| n % 3 == 0 && times(n) > 1).count();
            let wanted: isize = model.keys().map(|&n| bytes_of(&own(n, 0))).sum();
            prop_assert_eq!(bytes, wanted + (replaced * (4 + ALLOCATION)) as isize);
            let flat = |m: &BTreeMap<i32, Row>| m.iter().map(|(k, v)| (*k, v.clone())).collect::<Vec<_>>();
            prop_assert_eq!(all(&chunks, true), flat(&model));
            let mut back = flat(&model);
            back.reverse();
            prop_assert_eq!(all(&chunks, false), back);
            if let Some((chunks, model)) = snapshot {
                prop_assert_eq!(all(&chunks, true), flat(&model));
            }
            for (n, after) in seeks {
                let cut = ClusteringCut { prefix: key(n), after };
                let found = chunks.seek(&order, cut.position(), true).map(|c| number(&c.row().0));
                let wanted = model.keys().copied().find(|k| if after { *k > n } else { *k >= n });
                prop_assert_eq!(found, wanted);
                let found = chunks.seek(&order, cut.position(), false).map(|c| number(&c.row().0));
                let wanted = model.keys().copied().rfind(|k| if after { *k <= n } else { *k < n });
                prop_assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn rows_in_order_fill_their_chunks() {
        let mut chunks = Chunks::new(own(0, 0));
        for n in 1..10_000 {
            chunks.upsert(&order(), &key(n), |old| upsert_of(old, n, n as u32));
        }
        let mut leaves = 0;
        let mut nodes = vec![chunks.root.clone()];
        while let Some(node) = nodes.pop() {
            match &*node {
                Node::Leaf(_) => leaves += 1,
                Node::Inner(children) => nodes.extend(children.iter().map(|child| child.node.clone())),
            }
        }
        assert_eq!(leaves, 10_000usize.div_ceil(FULL));
    }
}
