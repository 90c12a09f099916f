//! Values by key, found with one look into memory.
//!
//! Decides where an entry is written: in a cell near the place that its key's hash names, probed one
//! after the other, at most three quarters of the cells full. A removed cell is closed up, so that
//! nothing degrades with use. A cell knows 96 of its key's 128 bits, which no client can choose.

use super::AffinityKey;

/// Values and slot numbers by key.
#[derive(Debug)]
pub(super) struct Index<V> {
    cells: Vec<Cell<V>>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Cell<V> {
    check: u64,
    /// Names the cell's home.
    place: u32,
    slot: u32,
    /// `None` in an empty cell.
    value: Option<V>,
}

/// A key's cell, until the index changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct At(usize);

impl<V: Copy> Index<V> {
    /// Room for so many entries before it must grow.
    pub fn with_capacity(entries: usize) -> Self {
        Self {
            cells: empty(cells_for(entries)),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes set aside.
    pub fn allocated(&self) -> usize {
        self.cells.capacity() * size_of::<Cell<V>>()
    }

    pub fn find(&self, key: AffinityKey) -> Option<At> {
        let (place, check) = halves(key);
        let mut at = self.home(place);
        loop {
            let cell = &self.cells[at];
            cell.value?;
            if cell.check == check && cell.place == place {
                return Some(At(at));
            }
            at = self.after(at);
        }
    }

    /// The value and the slot of a cell that was found.
    pub fn get(&self, At(at): At) -> Option<(V, u32)> {
        let cell = &self.cells[at];
        Some((cell.value?, cell.slot))
    }

    /// Changes the value of a cell that was found.
    pub fn set(&mut self, At(at): At, value: V) {
        self.cells[at].value = Some(value);
    }

    /// Adds a key, which must not be there yet.
    pub fn insert(&mut self, key: AffinityKey, slot: u32, value: V) {
        if cells_for(self.len + 1) > self.cells.len() {
            let bigger = empty(cells_for(2 * (self.len + 1)));
            let full = std::mem::replace(&mut self.cells, bigger);
            let full = full.into_iter().filter(|cell| cell.value.is_some());
            full.for_each(|cell| self.put(cell));
        }
        let (place, check) = halves(key);
        self.put(Cell {
            check,
            place,
            slot,
            value: Some(value),
        });
        self.len += 1;
    }

    /// Removes a key and returns its value and slot.
    pub fn remove(&mut self, key: AffinityKey) -> Option<(V, u32)> {
        let At(mut hole) = self.find(key)?;
        let removed = self.get(At(hole));
        self.len -= 1;
        let mut next = self.after(hole);
        // A later cell may move into the hole unless that lies before its home.
        while self.cells[next].value.is_some() {
            let home = self.home(self.cells[next].place);
            if self.distance(home, next) >= self.distance(hole, next) {
                self.cells[hole] = self.cells[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.cells[hole].value = None;
        removed
    }

    /// Changes every value. Linear.
    pub fn for_each_mut(&mut self, change: impl FnMut(&mut V)) {
        self.cells
            .iter_mut()
            .filter_map(|cell| cell.value.as_mut())
            .for_each(change);
    }

    fn put(&mut self, cell: Cell<V>) {
        let mut at = self.home(cell.place);
        while self.cells[at].value.is_some() {
            at = self.after(at);
        }
        self.cells[at] = cell;
    }

    /// Where probing begins: the place, scaled to the cells.
    fn home(&self, place: u32) -> usize {
        ((u64::from(place) * self.cells.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() {
            0
        } else {
            at + 1
        }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from {
            to - from
        } else {
            to + self.cells.len() - from
        }
    }
}

fn empty<V: Copy>(cells: usize) -> Vec<Cell<V>> {
    vec![
        Cell {
            check: 0,
            place: 0,
            slot: 0,
            value: None
        };
        cells
    ]
}

/// Cells for so many entries: a third more, and at least one that stays empty.
fn cells_for(entries: usize) -> usize {
    entries + entries / 3 + 2
}

fn halves(key: AffinityKey) -> (u32, u64) {
    let [place, check] = key.words();
    ((place >> 32) as u32, check)
}
