"""What a module moves, counted by hand on a small one."""

import pytest

from albert_tf.tpu.hlo_traffic import Module, size

# A forward loop of 3 trips that puts a slice into a stack, a backward loop
# that runs as often, an all-reduce, and copies between memory and scratchpad.
TEXT = """HloModule step, is_scheduled=true

%push (p0: f32[3,8,4], p1: f32[8,4], p2: s32[]) -> f32[3,8,4] {
  %p0 = f32[3,8,4]{2,1,0:T(8,128)} parameter(0)
  %p1 = f32[8,4]{1,0:T(8,128)S(1)} parameter(1)
  %p2 = s32[]{:T(128)} parameter(2)
  %b = f32[1,8,4]{2,1,0:T(8,128)S(1)} bitcast(%p1)
  ROOT %u = f32[3,8,4]{2,1,0:T(8,128)} dynamic-update-slice(%p0, %b, %p2)
}

%cut (o0: s32[], o1: f32[3,8,4]) -> f32[1,8,4] {
  %o0 = s32[]{:T(128)} parameter(0)
  %o1 = f32[3,8,4]{2,1,0:T(8,128)} parameter(1)
  ROOT %s = f32[1,8,4]{2,1,0:T(8,128)} dynamic-slice(%o1, %o0), sizes={1,8,4}
}

%pop (q0: f32[3,8,4], q1: s32[]) -> f32[8,4] {
  %q0 = f32[3,8,4]{2,1,0:T(8,128)} parameter(0)
  %q1 = s32[]{:T(128)} parameter(1)
  %in = f32[1,8,4]{2,1,0:T(8,128)} fusion(%q1, %q0), kind=kLoop, calls=%cut
  ROOT %c = f32[8,4]{1,0:T(8,128)} bitcast(%in)
}

%body (x: (s32[], f32[8,4], f32[3,8,4])) -> (s32[], f32[8,4], f32[3,8,4]) {
  %x = (s32[]{:T(128)}, f32[8,4]{1,0}, f32[3,8,4]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%x), index=0
  %h = f32[8,4]{1,0:T(8,128)S(1)} get-tuple-element(%x), index=1
  %k = f32[3,8,4]{2,1,0:T(8,128)} get-tuple-element(%x), index=2
  %f = f32[3,8,4] fusion(%k, %h, %i), calls=%push, c={"estimated_cycles":"70"}
  ROOT %t = (s32[], f32[8,4]{1,0}, f32[3,8,4]{2,1,0}) tuple(%i, %h, %f)
}

%lt (y: (s32[], f32[8,4], f32[3,8,4])) -> pred[] {
  %n = s32[]{:T(128)} constant(3)
  %y = (s32[]{:T(128)}, f32[8,4]{1,0}, f32[3,8,4]{2,1,0}) parameter(0)
  %j = s32[]{:T(128)} get-tuple-element(%y), index=0
  ROOT %l = pred[]{:T(512)} compare(%j, %n), direction=LT
}

%back (v: (s32[], s32[], f32[3,8,4])) -> (s32[], s32[], f32[3,8,4]) {
  %v = (s32[]{:T(128)}, s32[]{:T(128)}, f32[3,8,4]{2,1,0}) parameter(0)
  %w = s32[]{:T(128)S(1)} get-tuple-element(%v), index=0
  %z = f32[3,8,4]{2,1,0:T(8,128)} get-tuple-element(%v), index=2
  %g = f32[8,4]{1,0:T(8,128)S(1)} fusion(%z, %w), kind=kLoop, calls=%pop
  ROOT %r = (s32[], s32[], f32[3,8,4]{2,1,0}) tuple(%w, %w, %z)
}

%more (m: (s32[], s32[], f32[3,8,4])) -> pred[] {
  %m = (s32[]{:T(128)}, s32[]{:T(128)}, f32[3,8,4]{2,1,0}) parameter(0)
  %m0 = s32[]{:T(128)} get-tuple-element(%m), index=0
  %m1 = s32[]{:T(128)} get-tuple-element(%m), index=1
  ROOT %d = pred[]{:T(512)} compare(%m0, %m1), direction=LT
}

ENTRY %main (a: bf16[16], e: f32[8,4]) -> bf16[16] {
  %a = bf16[16]{0:T(1024)} parameter(0)
  %e = f32[8,4]{1,0:T(8,128)S(1)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %stack = f32[3,8,4]{2,1,0:T(8,128)} custom-call(), custom_call_target="Alloc"
  %start = (s32[], f32[8,4], f32[3,8,4]) tuple(%zero, %e, %stack)
  %loop = (s32[], f32[8,4], f32[3,8,4]) while(%start), condition=%lt,body=%body
  %count = s32[]{:T(128)} get-tuple-element(%loop), index=0
  %done = s32[]{:T(128)} copy(%count)
  %all = f32[3,8,4]{2,1,0:T(8,128)} get-tuple-element(%loop), index=2
  %begin = (s32[], s32[], f32[3,8,4]) tuple(%zero, %done, %all)
  %again = (s32[], s32[], f32[3,8,4]) while(%begin), condition=%more, body=%back
  %fetch = (bf16[16]{0:S(1)}, bf16[16]{0}, u32[]{:S(2)}) copy-start(%a)
  %here = bf16[16]{0:T(1024)S(1)} copy-done(%fetch)
  ROOT %sum = bf16[16]{0} all-reduce(%here), replica_groups={{0,1,2,3}}, to=%add
}
"""


def test_loops_run_as_often_as_their_bounds_say():
    """A bound is a constant, or what an earlier loop counted up to."""
    assert Module(TEXT).times() == {"main": 1, "body": 3, "back": 3}


def test_bytes_are_those_of_memory_and_of_slices():
    """Scratchpad is free, a slice is not its whole stack, loops multiply.

    The slice that is read is cut out by a fusion inside the fusion.
    """
    one = 8 * 4 * 4
    # Forward: one slice written (its source is in the scratchpad; the copy of
    # it is counted as read), the loop's counter read. Backward: one read.
    body = 2 * one + 4
    back = one
    main = 32 + 32 + (4 + 4)  # fetch a, write the sum, copy the counter
    assert Module(TEXT).bytes_moved() == 3 * (body + back) + main


def test_cycles_are_the_compilers_as_often_as_loops_run():
    """One instruction of the forward loop's body says what it takes."""
    assert Module(TEXT).cycles() == 3 * 70


def test_collectives_are_found_with_their_groups():
    """Kind, size and members of what replicas exchange."""
    expected = {"kind": "all-reduce", "times": 1, "bytes": 32, "replicas": 4}
    assert Module(TEXT).collectives() == [expected]
    ranges = TEXT.replace("{{0,1,2,3}}", "[1,8]<=[8]")
    assert Module(ranges).collectives()[0]["replicas"] == 8


@pytest.mark.parametrize(
    "shape, there, everywhere",
    [
        ("f32[2,3]{1,0:T(8,128)}", 24, 24),
        ("bf16[5]{0:T(1024)S(1)}", 0, 10),
        ("(s32[], pred[7]{0}, /*index=2*/u8[2]{0:S(1)})", 11, 13),
    ],
)
def test_sizes_of_shapes(shape, there, everywhere):
    """Types have their widths, tuples add up, scratchpad is told apart."""
    assert (size(shape), size(shape, scratch=True)) == (there, everywhere)
