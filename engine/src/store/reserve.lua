-- Counts that several gateways share: token buckets, kept here, spent there.
--
-- A gateway ("node") reserves tokens of a bucket in batches and spends them without asking again.
-- What it tells is its state and never a change: how much it has spent in all (S) and how much it
-- still holds. So a lost message or a lost answer needs no case of its own: tokens of a grant that
-- was never seen are not held, and flow back.
--
-- What makes it exact: level + outstanding <= capacity, always. A bucket fills up only to what
-- its capacity leaves beside the tokens that nodes hold.
--
-- KEYS[1]   the shard's epoch: which server run it belongs to, and since when (the fence)
-- KEYS[1+i] a bucket; all keys of a call lie in one hash slot
-- ARGV[1]   the server's run, as the node learnt it on this connection
-- ARGV[2]   the node, new with each start of its process
-- ARGV[3]   the time in us, for tests; 0: the server's own clock, the only one that counts
-- then for each bucket:
--   kind      t: tokens are held in advance; d: tokens are consumed as they are granted
--   A, B, C   a token is A units, B units arrive each us, the bucket holds C tokens
--   lease     us for which what is held may be spent
--   seq       grows with each message of the node
--   born      the first seq of the node's present memory of this key: S counts from there
--   S, held, want
--   demand    t: in thousandths of a token a second; d: what one request costs, for part of a
--             cost is of no use to anybody
--   el, ref   us of the node's clock since it sent message `ref`, the last that was answered;
--             0: none. Shows steps of the server's clock.
-- Returns for each bucket: granted, left, us until there is enough for a request, the node's fair rate in
-- thousandths, flags (1: what you hold is void, 2: seen before, 4: other epoch, 8: overtaken).

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local FIELDS = 13
local ACTIVE = 1000000      -- a node that was silent for longer takes no part in the sharing
local FORGET = 600000000    -- a node that was silent for longer is forgotten
local STEP = 200000         -- the server's clock and the node's may differ by this much a message

local now = tonumber(ARGV[3])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local run, node = ARGV[1], ARGV[2]
local mine = 'n' .. node

-- A server run that this shard has not seen: whatever was granted before may be spent until one
-- lease from now, so a bucket that is not here (any more) is born empty, then.
local epoch = redis.call('HMGET', KEYS[1], 'run', 'fence')
local fence = tonumber(epoch[2])
if epoch[1] ~= run then
  fence = now
  redis.call('HSET', KEYS[1], 'run', run, 'fence', now)
end

local function int(n) return string.format('%.0f', n) end

local function unpacked(text)
  local seq, held, ends, demand, seen, credit, granted, spent, burned, known, knew = string.match(
    text, '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$')
  return {
    seq = tonumber(seq), held = tonumber(held), ends = tonumber(ends), demand = tonumber(demand),
    seen = tonumber(seen), credit = tonumber(credit), granted = tonumber(granted),
    spent = tonumber(spent), burned = tonumber(burned),
    -- The last message that the node is known to have had an answer to, and when it was.
    known = tonumber(known), knew = tonumber(knew),
  }
end

local function packed(r)
  return table.concat({ int(r.seq), int(r.held), int(r.ends), int(r.demand), int(r.seen),
    int(r.credit), int(r.granted), int(r.spent), int(r.burned), int(r.known), int(r.knew) }, ',')
end

-- Max-min fair shares: how much of `want` the node may have now, beside what the others have
-- earned and not collected. Returns the grant and the node's fair rate.
local function share(me, others, want, avail, rate, demand, C, clock)
  local demands, total = { demand }, demand
  for _, r in pairs(others) do
    if clock - r.seen < ACTIVE and r.demand > 0 then
      demands[#demands + 1] = r.demand
      total = total + r.demand
    end
  end
  if #demands == 1 or total <= rate then
    me.credit = 0
    return max(0, min(want, avail)), rate
  end
  table.sort(demands)
  local left, n, fair = rate, #demands, 0
  for i = 1, #demands do
    fair = floor(left / n)
    if demands[i] > fair then break end
    left, n = left - demands[i], n - 1
  end
  local aside, top = 0, 0
  for _, r in pairs(others) do
    if clock - r.seen < ACTIVE and r.demand > 0 then
      local earned = floor(min(r.demand, fair) * (clock - r.seen) / 1000000)
      local credit = min(C * 1000, r.credit + earned)
      aside, top = aside + credit, max(top, credit)
    end
  end
  local earned = floor(min(demand, fair) * (clock - me.seen) / 1000000)
  me.credit = min(C * 1000, me.credit + earned)
  local bound = max(floor(me.credit / 1000), floor(avail - aside / 1000))
  -- Nobody has earned a whole token yet: who has earned most goes first.
  if bound < 1 and me.credit >= top then bound = 1 end
  local granted = max(0, min(want, avail, bound))
  if granted < want then
    me.credit = max(0, me.credit - granted * 1000)
  else
    me.credit = 0
  end
  return granted, min(demand, fair)
end

local out = {}
for i = 1, #KEYS - 1 do
  local key, at = KEYS[i + 1], 4 + (i - 1) * FIELDS
  local kind = ARGV[at]
  local function arg(n) return tonumber(ARGV[at + n]) end
  local A, B, C, lease, seq, born = arg(1), arg(2), arg(3), arg(4), arg(5), arg(6)
  local S, held, want, demand, el, ref = arg(7), arg(8), arg(9), arg(10), arg(11), arg(12)
  local full, flags, quantum = C * A, 0, 1
  if kind == 'd' then quantum = max(1, demand) end

  local bucket, records = {}, {}
  local flat = redis.call('HGETALL', key)
  for j = 1, #flat, 2 do
    if string.byte(flat[j]) == 110 then
      records[flat[j]] = unpacked(flat[j + 1])
    else
      bucket[flat[j]] = flat[j + 1]
    end
  end
  local set, del = {}, {}
  local me = records[mine]
  records[mine] = nil

  -- The bucket's own clock: the server's, with its steps taken out, and never backwards.
  local skew = tonumber(bucket.skew or '0')
  local clock = now + skew
  if me and me.seq == ref then me.known, me.knew = me.seq, me.seen end
  if el > 0 and me and me.known == ref then
    local off = clock - (me.knew + el)
    -- Into the past a step is not made good for in full: it must not push time ahead.
    local fix = 0
    if off > STEP then fix = -off elseif off < -STEP then fix = -off - STEP end
    clock, skew = clock + fix, skew + fix
  end
  if bucket.at then clock = max(clock, tonumber(bucket.at)) end

  local missing = bucket.run == nil
  if not missing and bucket.run ~= run then flags = flags + 4 end
  local level, filled, outstanding = 0, 0, tonumber(bucket.out or '0')
  if missing then
    level = min(full, max(0, clock - fence - lease) * B)
    filled = max(clock, fence + lease)
  else
    level, filled = tonumber(bucket.level), tonumber(bucket.filled)
    -- The rule was written anew, in other units.
    local was = tonumber(bucket.unit)
    if was ~= A then level = floor(level / was * A) end
  end

  -- What was held by those that fell silent counts as spent.
  for name, r in pairs(records) do
    if r.ends <= clock and r.held > 0 then
      outstanding = outstanding - r.held
      r.burned, r.held, r.demand = r.burned + r.held, 0, 0
      set[#set + 1] = name
      set[#set + 1] = packed(r)
    end
    if clock - r.ends > FORGET then
      del[#del + 1] = name
      records[name] = nil
    end
  end
  if me and me.ends <= clock and me.held > 0 then
    outstanding = outstanding - me.held
    me.burned, me.held = me.burned + me.held, 0
  end

  -- Fill up, beside what is outstanding.
  if clock > filled then
    local room = full - outstanding * A - level
    if room > 0 then
      if clock - filled >= room / B then
        level = level + room
      else
        level = level + (clock - filled) * B
      end
    end
    filled = clock
  end

  local granted, fair = 0, 0
  if me and me.seq >= seq then
    -- A message that came twice, or was overtaken: nothing changes.
    if me.seq == seq then
      granted = me.granted
      flags = flags + 2
    else
      flags = flags + 8
    end
  else
    if not me then
      me = { seq = 0, held = 0, ends = 0, demand = 0, seen = clock, credit = 0, granted = 0,
        spent = S, burned = 0, known = 0, knew = 0 }
    elseif me.seq < born then
      -- The node had forgotten this key, with nothing in hand, and counts anew.
      me.spent, me.burned = S, 0
    end
    if held > me.held then
      flags = flags + 1
      held = 0
    end
    local delta = max(0, S - me.spent)
    local covered = min(delta, me.held - held)
    -- Spent without a lease: its end had passed, or it was lost with a server, or there was no
    -- server to ask. The bucket pays, down to a capacity below nothing.
    local debt = max(0, delta - covered - me.burned)
    local returned = me.held - covered - held
    outstanding = outstanding - covered - returned
    level = max(-full, min(full - outstanding * A, level + returned * A) - debt * A)
    me.held, me.spent, me.burned, me.demand = held, S, 0, demand

    local avail = floor(level / A)
    if kind == 't' then
      local rate = floor(B * 1000000000 / A)
      granted, fair = share(me, records, want, avail, rate, demand, C, clock)
      outstanding = outstanding + granted
      me.held = me.held + granted
    else
      granted = max(0, min(want, avail))
      granted = granted - granted % quantum
    end
    level = level - granted * A
    me.seq, me.ends, me.seen, me.granted = seq, clock + lease, clock, granted
  end
  set[#set + 1] = mine
  set[#set + 1] = packed(me)

  local wait = 0
  local short = quantum * A - level
  if short > 0 then wait = ceil(short / B) + max(0, filled - clock) end
  local fields = { level = int(level), filled = int(filled), unit = int(A), at = int(clock),
    skew = int(skew), out = int(outstanding), run = run }
  for name, value in pairs(fields) do
    set[#set + 1] = name
    set[#set + 1] = value
  end
  if #del > 0 then redis.call('HDEL', key, unpack(del)) end
  redis.call('HSET', key, unpack(set))
  -- Not before it is full again and every lease has ended: a key that is gone is born anew.
  redis.call('PEXPIRE', key, int(floor((full - level) / B / 1000) + 2 * floor(lease / 1000) + 60000))
  out[#out + 1] = granted
  out[#out + 1] = max(0, floor(level / A))
  out[#out + 1] = wait
  out[#out + 1] = fair
  out[#out + 1] = flags
end
return out
