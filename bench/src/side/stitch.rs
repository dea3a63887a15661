//! Our store: the VT-tree engine on a preallocated file.

use super::{Fold, OpenOptions, Rows, Side, Steps, View, Write, store_path};
use crate::report::Io;
use anyhow::{Context as _, Error, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use stitch_base::{ErrorKind, TreeId, random};
use stitch_db::{Transaction, TransactionOptions, Transactions};
use stitch_device::{Device, FileDevice, IoMode};
use stitch_kv::{
    Batch, CommitOptions, Direction, Engine, KeyRange, KvError, NewBranch, Scan, Snapshot,
    SpaceClass, UpsertRegistry,
};
use stitch_volume::{FormatOptions, Volume};
use stitch_vt::{VtEngine, VtOptions};

pub(super) const TREE: &str = "bench";
const PAGE: u64 = 4096;

thread_local! {
    /// Kept by each thread, as a program that writes much would.
    static BATCH: RefCell<Batch> = const { RefCell::new(Batch::new()) };
}

/// An open store of ours.
pub(crate) struct Stitch {
    engine: Arc<VtEngine>,
    tree: TreeId,
    transactions: Transactions,
}

/// A transaction of ours.
struct StitchSteps {
    transaction: Transaction,
    tree: TreeId,
}

impl Steps for StitchSteps {
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.transaction.get(self.tree, key)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.put(self.tree, key, value)?)
    }
}

impl Stitch {
    pub(crate) fn open(options: &OpenOptions) -> Result<Self> {
        // As the command does; other sides' memory is their own business.
        stitchfs::allocator::hold_little();
        let device = open_device(options, None)?;
        let opened = Volume::open(device, &stitch_volume::OpenOptions::default())?;
        let default = VtOptions::default();
        let asked = options.scale.compactors.map(|count| count as usize);
        let (level0, fanout) = (options.ours.level0_tables_max, options.ours.fanout);
        let mut upserts = UpsertRegistry::default();
        stitch_fs::register_upserts(&mut upserts);
        let vt_options = VtOptions {
            memory_bytes: options.scale.budget_bytes(),
            upserts,
            compactors: asked.unwrap_or(default.compactors),
            level0_tables_max: level0.unwrap_or(default.level0_tables_max),
            fanout: fanout.unwrap_or(default.fanout),
            ..default
        };
        let engine = VtEngine::open(opened, vt_options)?;
        let found = engine.trees().into_iter().find(|tree| tree.name == TREE);
        let tree = match found {
            Some(info) => info.id,
            None => engine.create_tree(TREE, &options.ours.tree)?,
        };
        Ok(Self::of(engine, tree))
    }

    fn of(engine: Arc<VtEngine>, tree: TreeId) -> Self {
        let transactions = Transactions::new(Arc::clone(&engine) as Arc<dyn Engine>);
        Self {
            engine,
            tree,
            transactions,
        }
    }

    fn commit(&self, sync: bool, fill: impl FnOnce(&mut Batch)) -> Result<()> {
        BATCH.with_borrow_mut(|batch| {
            batch.clear();
            fill(batch);
            let options = CommitOptions {
                sync,
                space: if batch.messages().all(|(_, message)| is_delete(&message)) {
                    SpaceClass::Reserve
                } else {
                    SpaceClass::Normal
                },
            };
            self.engine.commit(batch, options)?;
            Ok(())
        })
    }

    fn scan_at(&self, start: &[u8], at: Option<&Snapshot>, rows: &mut Rows<'_>) -> Result<()> {
        let range = KeyRange::from(start);
        let scan = self.engine.scan(self.tree, range, Direction::Forward, at)?;
        walk(scan, rows)
    }

    fn add(&self, batch: &mut Batch, writes: &[Write<'_>]) {
        for write in writes {
            match write {
                Write::Put(key, value) => batch.put(self.tree, key, value),
                Write::Delete(key) => batch.delete(self.tree, key),
            }
        }
    }
}

/// Walks what is left of a scan, as long as it is wanted.
fn walk(mut scan: Box<dyn Scan + '_>, rows: &mut Rows<'_>) -> Result<()> {
    while let Some((key, value)) = scan.next()? {
        if !rows(key, value) {
            break;
        }
    }
    Ok(())
}

fn is_delete(message: &stitch_kv::Message<'_>) -> bool {
    use stitch_kv::Message;
    matches!(
        message,
        Message::Delete { .. } | Message::DeleteRange { .. }
    )
}

/// A file in the folder, or the device, formatted where nothing is there yet.
pub(super) fn open_device(
    options: &OpenOptions,
    version_log_bytes: Option<u64>,
) -> Result<Arc<dyn Device>> {
    let is_folder = options.dir.is_dir();
    let path = if is_folder {
        store_path(&options.dir, "store.stitch")
    } else {
        options.dir.clone()
    };
    let device: Arc<dyn Device> = if is_folder && options.is_fresh {
        let len_bytes = options.volume_bytes.next_multiple_of(PAGE);
        Arc::new(FileDevice::create(&path, len_bytes)?)
    } else {
        let io = match options.scale.io {
            // A file has but one way.
            _ if is_folder => IoMode::Auto,
            Io::Auto => IoMode::Auto,
            Io::Buffered => IoMode::Buffered,
            Io::Direct => IoMode::Direct,
            Io::Ring => IoMode::Ring,
        };
        let device_options = stitch_device::OpenOptions {
            io,
            ..stitch_device::OpenOptions::default()
        };
        stitch_device::open_path(&path, device_options)?
    };
    if options.is_fresh {
        let format = FormatOptions {
            uuid: random::bytes16().context("no random numbers")?,
            version_log_bytes,
            ..FormatOptions::default()
        };
        Volume::format(device.as_ref(), &format, &mut |_, _| ())?;
    }
    Ok(device)
}

impl Side for Stitch {
    fn write(&self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        self.commit(sync, |batch| self.add(batch, writes))
    }

    fn write_and_fold(&self, writes: &[Write<'_>], folds: &[Fold<'_>]) -> Result<()> {
        self.commit(false, |batch| {
            self.add(batch, writes);
            for fold in folds {
                batch.upsert(self.tree, fold.key, fold.function, fold.delta);
            }
        })
    }

    fn transact(&self, body: &mut dyn FnMut(&mut dyn Steps) -> Result<()>) -> Result<bool> {
        let transaction = self.transactions.begin(&TransactionOptions::default());
        let tree = self.tree;
        let mut steps = StitchSteps { transaction, tree };
        body(&mut steps)?;
        match steps.transaction.commit(CommitOptions::default()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn branch(&self) -> Result<Arc<dyn Side>> {
        let count = self.engine.trees().len();
        let name = format!("branch {count}");
        let made = self
            .engine
            .branch_trees(&[NewBranch::new(self.tree, &name)], None)?;
        Ok(Arc::new(Self::of(Arc::clone(&self.engine), made[0])))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.engine.sync()?)
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let found = self.engine.get(self.tree, key, None)?;
        if let Some(value) = &found {
            see(value);
        }
        Ok(found.is_some())
    }

    fn get_many(&self, keys: &[&[u8]], see: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let values = self.engine.get_many(self.tree, keys, None)?;
        let found = values.iter().enumerate();
        let found = found.filter_map(|(at, value)| Some((at, value.as_ref()?)));
        Ok(found.map(|(at, value)| see(at, value)).count())
    }

    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.scan_at(start, None, rows)
    }

    fn scan_whole(&self, start: &[u8], end: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        let range = KeyRange::new(start, end);
        walk(self.engine.scan_whole(self.tree, range, None)?, rows)
    }

    fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<bool> {
        self.commit(false, |batch| batch.delete_range(self.tree, start, end))?;
        Ok(true)
    }

    fn defrag(&self) -> Result<bool> {
        self.engine.defrag(&mut |_, _| true)?;
        Ok(true)
    }

    fn snapshot(&self) -> Result<Box<dyn View + '_>> {
        Ok(Box::new(StitchView {
            snapshot: self.engine.snapshot(),
            side: self,
        }))
    }

    fn space_bytes(&self) -> Result<u64> {
        Ok(self.engine.volume().zones().usage().live)
    }

    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn fullness(&self) -> Result<f64> {
        let space = self.engine.space();
        let used = space.total_bytes - space.free_bytes;
        Ok(used as f64 / space.total_bytes as f64)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.engine.quiesce()?)
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = self.engine.counters();
        let named = counters.iter();
        named
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn is_full(&self, error: &Error) -> bool {
        let kind = error.downcast_ref::<KvError>().map(KvError::kind);
        kind == Some(ErrorKind::NoSpace)
    }

    fn close(&self) -> Result<()> {
        Ok(self.engine.close()?)
    }
}

struct StitchView<'a> {
    side: &'a Stitch,
    snapshot: Snapshot,
}

impl View for StitchView<'_> {
    fn scan(&self, start: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        self.side.scan_at(start, Some(&self.snapshot), rows)
    }
}
