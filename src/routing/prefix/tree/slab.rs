//! Entries at numbers that are used again.
//!
//! Keeps the prefix tree's blocks and sessions together in memory. Numbers come from the tree
//! alone; one that was freed must not be used before it is given again.

/// A vector whose freed entries are given again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<T>,
    unused: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            unused: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub fn add(&mut self, entry: T) -> u32 {
        if let Some(at) = self.unused.pop() {
            self[at] = entry;
            return at;
        }
        self.entries.push(entry);
        (self.entries.len() - 1) as u32
    }

    pub fn free(&mut self, at: u32) {
        self.unused.push(at);
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        &self.entries[at as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.entries[at as usize]
    }
}
