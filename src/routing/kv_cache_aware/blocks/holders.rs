//! The holders of one block, in 16 bytes where they are few.

/// An instance's number in the index.
pub(in super::super) type Slot = u16;

/// Holders without a table of bits.
const FEW: usize = 7;
/// No holder; never a slot.
const NONE: Slot = Slot::MAX;

/// A set of slots, as bits.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Slots(Vec<u64>);

impl Slots {
    /// All slots below `bound`.
    pub(super) fn all(bound: usize) -> Self {
        let mut words = vec![u64::MAX; bound / 64];
        if !bound.is_multiple_of(64) {
            words.push((1 << (bound % 64)) - 1);
        }
        Self(words)
    }

    fn add(&mut self, slot: Slot) {
        let (word, bit) = place(slot);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    fn remove(&mut self, slot: Slot) {
        let (word, bit) = place(slot);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Keeps only the slots that are also among `holders`, and tells each one that goes.
    pub(super) fn keep(&mut self, holders: &Holders, mut lost: impl FnMut(Slot)) {
        for (at, word) in self.0.iter_mut().enumerate() {
            let kept = *word & holders.word(at);
            each_bit(at, *word & !kept, &mut lost);
            *word = kept;
        }
    }

    pub(super) fn for_each(&self, mut act: impl FnMut(Slot)) {
        for (at, word) in self.0.iter().enumerate() {
            each_bit(at, *word, &mut act);
        }
    }
}

/// The holders of one block.
#[derive(Debug, Clone)]
pub(super) enum Holders {
    Few([Slot; FEW]),
    Many(Box<Slots>),
}

impl Default for Holders {
    fn default() -> Self {
        Self::Few([NONE; FEW])
    }
}

impl Holders {
    pub(super) fn add(&mut self, slot: Slot) {
        match self {
            Self::Many(slots) => slots.add(slot),
            Self::Few(few) if few.contains(&slot) => {}
            Self::Few(few) => match few.iter_mut().find(|held| **held == NONE) {
                Some(place) => *place = slot,
                None => {
                    let mut slots = Slots::default();
                    few.iter().for_each(|held| slots.add(*held));
                    slots.add(slot);
                    *self = Self::Many(Box::new(slots));
                }
            },
        }
    }

    /// Removes a holder; `false` if none is left.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        match self {
            Self::Many(slots) => {
                slots.remove(slot);
                !slots.is_empty()
            }
            Self::Few(few) => {
                for held in few.iter_mut().filter(|held| **held == slot) {
                    *held = NONE;
                }
                few.iter().any(|held| *held != NONE)
            }
        }
    }

    /// The 64 slots from `64 * at` on, as bits.
    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Many(slots) => slots.0.get(at).copied().unwrap_or(0),
            Self::Few(few) => few
                .iter()
                .map(|slot| place(*slot))
                .filter(|(word, _)| *word == at)
                .fold(0, |bits, (_, bit)| bits | bit),
        }
    }
}

fn place(slot: Slot) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

fn each_bit(at: usize, mut word: u64, act: &mut impl FnMut(Slot)) {
    while word != 0 {
        let slot = at * 64 + word.trailing_zeros() as usize;
        // Words come from slots, so their numbers are slots.
        act(Slot::try_from(slot).unwrap_or(NONE));
        word &= word - 1;
    }
}
