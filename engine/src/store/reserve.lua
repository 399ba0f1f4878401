-- Counts that several gateways share: buckets, windows and places, kept here, spent there.
--
-- A gateway ("node") reserves tokens of a bucket in batches and spends them without asking again.
-- What it tells is its state and never a change: how much it has spent in all (S) and how much it
-- still holds. So a lost message or a lost answer needs no case of its own: tokens of a grant that
-- was never seen are not held, and flow back.
--
-- What makes it exact: level + outstanding <= capacity, always: a bucket fills up only to what its
-- capacity leaves beside the tokens that nodes hold. In the same way, what a window counts and what
-- nodes hold is together never more than it admits.
--
-- KEYS[1]   the shard's epoch: which server run it belongs to, and since when (the fence)
-- KEYS[1+i] a count; all keys of a call lie in one hash slot
-- ARGV[1]   the server's run, as the node learnt it on this connection; `RUN<FROM` where the node
--           knows that all of the shard was carried here from the run FROM, which still lives
-- ARGV[2]   the node, new with each start of its process
-- ARGV[3]   the time in us, for tests; 0: the server's own clock, the only one that counts
-- then for each count:
--   kind      t: a bucket, tokens are held in advance; d: they are consumed as they are granted
--             w, x: the same of a window; c: places, of which at most C are taken at once
--             in upper case: when the server has lost something, count as if all had been used
--   A, B, C   t, d: a token is A units, B units arrive each us, the bucket holds C tokens
--             w, x: what was spent within A us (0: a month) is noted as one, at the end of them,
--             and counts for B us more; C at most. B = 0 is a window with edges.
--   lease     us for which what is held may be spent
--   seq       grows with each message of the node
--   born      the first seq of the node's present memory of this key: S counts from there
--   S, held, want   c: S is how many are in use now
--   demand    held in advance: in thousandths of a token a second; consumed: the most that one
--             request costs, for part of a cost is of no use to anybody
--   el, ref   us of the node's clock since it sent message `ref`, the last that was answered;
--             0: none. Shows steps of the server's clock.
-- Returns for each: granted, left, us until there is enough for a request, the node's fair rate
-- in thousandths, flags (1: what you hold is void, 2: seen before, 4: other epoch, 8: overtaken).

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local FIELDS = 13
local ACTIVE = 1000000      -- a node that was silent for longer takes no part in the sharing
local FORGET = 600000000    -- a node that was silent for longer is forgotten
local RETURN = 600000       -- nodes find a server that was away within this time
local AGAIN = 5000          -- places come back when requests end: nobody knows when
local DAY = 86400000000
local MOVES = 1000          -- bytes of runs that are remembered; keys of older ones count as lost
local STEP = 200000         -- the server's clock and the node's may differ by this much a message

local now = tonumber(ARGV[3])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local run, from = string.match(ARGV[1], '^([^<]*)<?(.*)$')
local node = ARGV[2]
local mine = 'n' .. node

-- A server run that this shard has not seen: whatever was granted before may be spent until one
-- lease from now, so a bucket that is not here (any more) is born empty, then.
local epoch = redis.call('HMGET', KEYS[1], 'run', 'fence', 'moved')
-- Nothing is begun where a shard is not, or not yet: its move would find it there, and fail.
if #KEYS == 1 and not epoch[1] then return {} end
local fence = tonumber(epoch[2])
-- Runs that all of the shard was carried over from since the fence.
local moved = epoch[3] or ' '
if epoch[1] ~= run then
  if epoch[1] == from then
    moved = string.match(moved .. from .. ' ', ' .*', -MOVES)
  else
    fence, moved = now, ' '
  end
  redis.call('HSET', KEYS[1], 'run', run, 'fence', fence, 'moved', moved)
end
local function lost(its)
  return its ~= run and not string.find(moved, ' ' .. its .. ' ', 1, true)
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

-- The end of the month of this time (Hinnant, "chrono-compatible low-level date algorithms").
local function month_end(at)
  local days = floor(at / DAY)
  local z = days + 719468
  local era = floor(z / 146097)
  local of_era = z - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524)
    - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local march = floor((5 * of_year + 2) / 153)
  local day = of_year - floor((153 * march + 2) / 5) + 1
  -- From March on, and February's at the end of the year that began in March.
  local lengths = { 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 28 }
  local length = lengths[march + 1]
  year = year + era * 400 + 1
  if march == 11 and year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0) then length = 29 end
  return (days + 1 + length - day) * DAY
end

-- When what is spent at this time is noted: never before it.
local function noted(at, A, B)
  if B > 0 then return ceil(at / A) * A end
  if A > 0 then return floor(at / A) * A + A end
  return month_end(at)
end

local out = {}
for i = 1, #KEYS - 1 do
  local key, at = KEYS[i + 1], 4 + (i - 1) * FIELDS
  local kind = string.lower(ARGV[at])
  local strict = kind ~= ARGV[at]
  local bucket, places = kind == 't' or kind == 'd', kind == 'c'
  local window, direct = kind == 'w' or kind == 'x', kind == 'd' or kind == 'x'
  local function arg(n) return tonumber(ARGV[at + n]) end
  local A, B, C, lease, seq, born = arg(1), arg(2), arg(3), arg(4), arg(5), arg(6)
  local S, held, want, demand, el, ref = arg(7), arg(8), arg(9), arg(10), arg(11), arg(12)
  local full, flags, quantum = C * A, 0, 1
  if direct then quantum = max(1, demand) end

  local state, records = {}, {}
  local flat = redis.call('HGETALL', key)
  for j = 1, #flat, 2 do
    if string.byte(flat[j]) == 110 then
      records[flat[j]] = unpacked(flat[j + 1])
    else
      state[flat[j]] = flat[j + 1]
    end
  end
  local set, del = {}, {}
  local me = records[mine]
  records[mine] = nil

  -- The count's own clock: the server's, with its steps taken out, and never backwards.
  local skew = tonumber(state.skew or '0')
  local clock = now + skew
  if me and me.seq == ref then me.known, me.knew = me.seq, me.seen end
  if el > 0 and me and me.known == ref then
    local off = clock - (me.knew + el)
    -- Into the past a step is not made good for in full: it must not push time ahead.
    local fix = 0
    if off > STEP then fix = -off elseif off < -STEP then fix = -off - STEP end
    clock, skew = clock + fix, skew + fix
  end
  if state.at then clock = max(clock, tonumber(state.at)) end

  local missing = state.run == nil
  if not missing and lost(state.run) then flags = flags + 4 end
  local fresh = missing or (flags == 4 and strict)
  local level, filled, outstanding = 0, 0, tonumber(state.out or '0')
  if fresh then
    -- What was granted before may be spent until one lease after the fence.
    for name, _ in pairs(records) do del[#del + 1] = name end
    records, me, outstanding, state.log = {}, nil, 0, nil
    if bucket then level = min(full, max(0, clock - fence - lease) * B) end
    filled = max(clock, fence + lease)
  else
    level, filled = tonumber(state.level), tonumber(state.filled)
    -- The rule was written anew: until now it filled up by the old one.
    local was, rate = tonumber(state.unit), tonumber(state.rate)
    if bucket and (was ~= A or rate ~= B) then
      local room = (C - outstanding) * was - level
      if clock > filled and room > 0 then
        level = level + min(room, (clock - filled) * rate)
      end
      level, filled = floor(level / was * A), max(filled, clock)
    end
  end

  -- What a window has counted: when it was noted, and how much.
  local stamps, counts, total = {}, {}, 0
  for stamp, n in string.gmatch(state.log or '', '(%d+):(%d+)') do
    if tonumber(stamp) + B > clock then
      stamps[#stamps + 1], counts[#counts + 1] = tonumber(stamp), tonumber(n)
      total = total + tonumber(n)
    end
  end
  local function note(n, time)
    local stamp, p = noted(time, A, B), #stamps
    if n <= 0 or stamp + B <= clock then return end
    while p > 0 and stamps[p] > stamp do p = p - 1 end
    if stamps[p] == stamp then
      counts[p] = counts[p] + n
    else
      table.insert(stamps, p + 1, stamp)
      table.insert(counts, p + 1, n)
    end
    total = total + n
  end
  if window and fresh and strict then note(C, fence + lease) end

  -- Nobody has told of the places that are in use for longer than their lease: the server was
  -- away. Let everybody tell before any is given out.
  if places and not fresh and outstanding > 0 and clock - tonumber(state.at) > lease then
    filled = max(filled, clock + RETURN)
  end

  -- What was held by those that fell silent counts as spent, at the latest when its lease ended.
  local function reap(r)
    outstanding = outstanding - r.held
    if window then note(r.held, r.ends) end
    r.burned, r.held = r.burned + r.held, 0
  end
  for name, r in pairs(records) do
    if r.ends <= clock and r.held > 0 then
      reap(r)
      r.demand = 0
      set[#set + 1] = name
      set[#set + 1] = packed(r)
    end
    if clock - r.ends > FORGET then
      del[#del + 1] = name
      records[name] = nil
    end
  end
  if me and me.ends <= clock and me.held > 0 then reap(me) end

  -- Fill up, beside what is outstanding.
  if bucket and clock > filled then
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

  local function left()
    if bucket then return floor(level / A) end
    if window then return C - total - outstanding end
    if clock < filled then return 0 end
    return C - outstanding
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
    if places then
      -- What is in use is in use, granted or not.
      if S + held > me.held and held > 0 then
        flags = flags + 1
        held = 0
      end
      outstanding = outstanding + S + held - me.held
      held = S + held
    else
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
      if bucket then
        level = max(-full, min(full - outstanding * A, level + returned * A) - debt * A)
      else
        note(covered + debt, clock)
      end
    end
    me.held, me.spent, me.burned, me.demand = held, S, 0, demand

    local avail = left()
    if direct or places then
      granted = max(0, min(want, avail))
      if granted < want then granted = granted - granted % quantum end
    else
      local rate
      if bucket then
        rate = floor(B * 1000000000 / A)
      else
        local period = B
        if period == 0 then period = A end
        if period == 0 then period = 30 * DAY end
        rate = floor(C * 1000000000 / period)
      end
      granted, fair = share(me, records, want, avail, rate, demand, C, clock)
    end
    if bucket then level = level - granted * A end
    if kind == 'x' then
      note(granted, clock)
    elseif kind ~= 'd' then
      outstanding = outstanding + granted
      me.held = me.held + granted
    end
    me.seq, me.ends, me.seen, me.granted = seq, clock + lease, clock, granted
  end
  set[#set + 1] = mine
  set[#set + 1] = packed(me)

  local wait, rest, log = 0, 0, {}
  if bucket then
    local short = quantum * A - level
    if short > 0 then wait = ceil(short / B) + max(0, filled - clock) end
    rest = floor((full - level) / B)
  elseif window then
    local short = quantum - left()
    if short > 0 then wait = lease end
    for j = 1, #stamps do
      log[j] = int(stamps[j]) .. ':' .. int(counts[j])
      rest = stamps[j] + B - clock
      if short > 0 then
        short, wait = short - counts[j], rest
      end
    end
    -- The rest is in hands: it comes back, or is noted, within a lease.
    if short > 0 then wait = lease end
  elseif left() < 1 then
    wait = max(AGAIN, filled - clock)
  end
  local fields = { level = int(level), filled = int(filled), unit = int(A), rate = int(B),
    at = int(clock), skew = int(skew), out = int(outstanding), run = run }
  if window then fields.log = table.concat(log, ',') end
  for name, value in pairs(fields) do
    set[#set + 1] = name
    set[#set + 1] = value
  end
  if #del > 0 then redis.call('HDEL', key, unpack(del)) end
  redis.call('HSET', key, unpack(set))
  -- Not before it is as good as new and every lease has ended: a key that is gone is born anew.
  redis.call('PEXPIRE', key, int(floor(rest / 1000) + 2 * floor(lease / 1000) + 60000))
  out[#out + 1] = granted
  out[#out + 1] = max(0, left())
  out[#out + 1] = wait
  out[#out + 1] = fair
  out[#out + 1] = flags
end
return out
