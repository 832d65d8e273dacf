"""Bytes are counted as often as they move, whatever the compiler made of the loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rime_jax.aot import hlo, traffic

needs_devices = pytest.mark.skipif(len(jax.devices()) < 8, reason="needs 8 devices")

# A loop as TPUs have it: no note of its iterations, a counter from 2 by twice 1 to 8, a collective
# that overlaps and is spread over two fusions with one channel.
HAND_MADE = """HloModule hand, num_partitions=4

%start (p: bf16[8,4]) -> bf16[32,4] {
  %p = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %ag = bf16[32,4]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), CHANNEL
}

%done (p: bf16[8,4]) -> bf16[32,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %ag2 = bf16[32,4]{1,0} all-gather(%p), CHANNEL
}

%slice (stack: f32[100,16], i: s32[]) -> f32[1,16] {
  %stack = f32[100,16]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %ds = f32[1,16]{1,0} dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={1,16}
}

%body (state: (s32[], bf16[8,4], f32[100,16])) -> (s32[], bf16[8,4], f32[100,16]) {
  %state = (s32[], /*index=1*/bf16[8,4]{1,0}, f32[100,16]{1,0}) parameter(0)
  %one = s32[] constant(1)
  %i = s32[] get-tuple-element(%state), index=0
  %i1 = s32[] add(%i, %one)
  %i2 = s32[] add(%one, %i1)
  %x = bf16[8,4]{1,0} get-tuple-element(%state), index=1
  %stack = f32[100,16]{1,0} get-tuple-element(%state), index=2
  %f1 = bf16[32,4]{1,0:S(1)} fusion(%x), kind=kCustom, calls=%start
  %f2 = bf16[32,4]{1,0:S(1)} fusion(%x), kind=kCustom, calls=%done
  %row = f32[1,16]{1,0} fusion(%stack, %i), kind=kLoop, calls=%slice
  ROOT %out = (s32[], bf16[8,4]{1,0}, f32[100,16]{1,0}) tuple(%i2, %x, %stack)
}

%condition (state: (s32[], bf16[8,4], f32[100,16])) -> pred[] {
  %state = (s32[], bf16[8,4]{1,0}, f32[100,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %limit = s32[] constant(LIMIT)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (x: bf16[8,4], stack: f32[100,16]) -> bf16[8,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %stack = f32[100,16]{1,0} parameter(1)
  %two = s32[] constant(2)
  %copied = s32[] copy(%two)
  %init = (s32[], bf16[8,4]{1,0}, f32[100,16]{1,0}) tuple(%copied, %x, %stack)
  %loop = (s32[], bf16[8,4]{1,0}, f32[100,16]{1,0}) while(%init), condition=%condition, body=%body
  ROOT %y = bf16[8,4]{1,0} get-tuple-element(%loop), index=1
}
""".replace("CHANNEL", "channel_id=5, replica_groups=mesh['x'=2,'y'=2] {'x','y'}, dimensions={0}")


def test_a_counter_gives_the_iterations_where_nothing_notes_them():
    found = traffic.measure(hlo.parse(HAND_MADE.replace("LIMIT", "9")))
    gather = found.collectives["all-gather"]
    # 2, 4, 6, 8 are below 9.
    assert (gather.count, gather.bytes) == (4, 4 * 256)
    assert gather.wire_bytes == 4 * 256 * 3 / 4


def test_a_slice_of_a_stack_is_counted_as_a_slice_and_core_memory_not_at_all():
    found = traffic.measure(hlo.parse(HAND_MADE.replace("LIMIT", "4")))
    # Of one iteration: row of 64 bytes in and out, two fusions that read x (64 bytes each), three
    # scalars of each counter's addition; outside of it a copied scalar, in and out.
    assert found.hbm_bytes == (64 + 64 + 4) + 2 * 64 + 2 * 12 + 8


def test_a_loop_whose_end_is_data_runs_as_often_as_said():
    text = HAND_MADE.replace("%limit = s32[] constant(LIMIT)",
                             "%limit = s32[] get-tuple-element(%state), index=0")
    module = hlo.parse(text)
    assert traffic.measure(module, 7).collectives["all-gather"].count == 7


@pytest.mark.parametrize("groups, members", [
    ("replica_groups={{0,2},{1,3}}", 2), ("replica_groups=[1,4]<=[4]", 4),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}", 2), ("replica_groups={}", 4)])
def test_groups_are_read_in_every_notation(groups, members):
    text = f"""HloModule m, num_partitions=4

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %y = f32[8]{{0}} all-reduce(%x), {groups}, to_apply=%add
}}
"""
    found = traffic.measure(hlo.parse(text)).collectives["all-reduce"]
    assert (found.bytes, found.wire_bytes) == (32, 32 * 2 * (members - 1) / members)


def compiled(function, *shapes_and_specs):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
                 for shape, spec in shapes_and_specs]
    return hlo.parse(jax.jit(function).lower(*arguments).compile().as_text())


def layers(x, weights, unroll):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights, unroll=unroll)[0]


@needs_devices
def test_scanned_layers_move_what_unrolled_ones_move():
    arguments = ((64, 128), P("x")), ((12, 128, 128), P(None, "x"))
    scanned, unrolled = (
        traffic.measure(compiled(functools.partial(layers, unroll=u), *arguments))
        for u in (1, True))
    assert scanned.collectives.keys() == unrolled.collectives.keys() == {"all-gather"}
    assert scanned.collectives["all-gather"].bytes == 12 * 128 * 128 * 4
    assert unrolled.collectives["all-gather"].bytes == 12 * 128 * 128 * 4


@needs_devices
def test_an_all_reduce_moves_twice_its_array_but_for_its_own_part():
    module = compiled(lambda x: x.sum(0), ((64, 128), P("x")))
    found = traffic.measure(module).collectives["all-reduce"]
    assert (found.count, found.bytes, found.wire_bytes) == (1, 512, 2 * 512 * 7 / 8)


def test_hbm_bytes_of_a_product_are_its_operands_and_its_result():
    module = hlo.parse(jax.jit(jnp.matmul).lower(
        np.zeros((256, 64), np.float32), np.zeros((64, 32), np.float32)).compile().as_text())
    assert traffic.measure(module).hbm_bytes == 4 * (256 * 64 + 64 * 32 + 256 * 32)


NESTED = """HloModule nested

%turned (w: bf16[64,32]) -> bf16[32,64] {
  %w = bf16[64,32]{1,0} parameter(0)
  ROOT %b = bf16[32,64]{0,1} bitcast(%w)
}

%product (x: bf16[8,32], w: bf16[64,32]) -> bf16[8,64] {
  %x = bf16[8,32]{1,0} parameter(0)
  %w = bf16[64,32]{1,0} parameter(1)
  %wt = bf16[32,64]{0,1} fusion(%w), kind=kLoop, calls=%turned
  ROOT %y = bf16[8,64]{1,0} convolution(%x, %wt), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[8,32], w: bf16[64,32]) -> bf16[8,64] {
  %x = bf16[8,32]{1,0} parameter(0)
  %w = bf16[64,32]{1,0} parameter(1)
  ROOT %y = bf16[8,64]{1,0} fusion(%x, %w), kind=kOutput, calls=%product
}
"""


def test_a_weight_that_a_nested_fusion_only_turns_is_read():
    found = traffic.measure(hlo.parse(NESTED))
    assert found.hbm_bytes == 2 * (8 * 32 + 64 * 32 + 8 * 64)


PARTS = """HloModule parts

%rows (table: f32[1000,64], places: s32[8]) -> f32[8,64] {
  %table = f32[1000,64]{1,0} parameter(0)
  %places = s32[8]{0} parameter(1)
  ROOT %g = f32[8,64]{1,0} gather(%table, %places), offset_dims={1}, slice_sizes={1,64}
}

ENTRY %main (table: f32[1000,64], places: s32[8]) -> f32[8,64] {
  %table = f32[1000,64]{1,0} parameter(0)
  %places = s32[8]{0} parameter(1)
  LINE
}
"""


@pytest.mark.parametrize("line, moved", [
    # Fetched ahead into the core's memory: read only. The result holds source and target.
    ("ROOT %s = ((f32[1000,64]{1,0}), f32[8,64]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%table), "
     "slice={[0:8], [0:64]}", 2048),
    ("ROOT %s = ((f32[1000,64]{1,0}), f32[8,64]{1,0}, s32[]{:S(2)}) slice-start(%table), "
     "slice={[0:8], [0:64]}", 2 * 2048),
    ("ROOT %s = f32[8,64]{1,0} slice(%table), slice={[0:8], [0:64]}", 2 * 2048),
    ("ROOT %s = f32[8,64]{1,0} gather(%table, %places), offset_dims={1}", 2 * 2048),
    ("ROOT %s = f32[8,64]{1,0} fusion(%table, %places), kind=kCustom, calls=%rows",
     2 * 2048 + 32)])
def test_of_a_table_only_the_part_that_is_taken_counts(line, moved):
    assert traffic.measure(hlo.parse(PARTS.replace("LINE", line))).hbm_bytes == moved


def test_what_another_core_of_the_chip_is_sent_to_do_counts():
    started = ("%c = ((f32[1000,64]{1,0}, s32[8]{0}), f32[8,64]{1,0}, u32[]{:S(8)}) call-start("
               "%table, %places), async_execution_thread=\"sparsecore\", to_apply=%rows\n"
               "  ROOT %d = f32[8,64]{1,0} call-done(%c)")
    assert traffic.measure(hlo.parse(PARTS.replace("LINE", started))).hbm_bytes == 2 * 2048
